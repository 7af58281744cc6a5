/* provenance.c - the metadata keys that say what a quantized file was made from.
 * SPDX-License-Identifier: MIT */
#include "provenance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "output.h"

static const char *const FACTS_KIND = "imatrix-facts";

/* As strncpy with 127 bytes and a NUL, which is what llama-quantize keeps of its strings. */
static void copy_127(char to[static 128], const char *from)
{
    size_t n = strnlen(from, 127);
    memcpy(to, from, n);
    to[n] = '\0';
}

void imatrix_facts_of(struct imatrix_facts *facts, const struct job_imatrix *im)
{
    memset(facts, 0, sizeof *facts);
    if (!im->present)
        return;
    snprintf(facts->sha256, sizeof facts->sha256, "%s", im->data.sha256);
    char *path = im->path && !im->computed ? realpath(im->path, NULL) : NULL;
    if (path)
        snprintf(facts->path, sizeof facts->path, "%s", path);
    free(path);
    if (im->data.n_datasets)
        copy_127(facts->dataset, im->data.datasets[0]);
    facts->n_entries = (int64_t)im->data.n_entries;
    facts->n_chunks = im->data.chunk_count;
}

allot_status imatrix_facts_store(struct archive *archive, const struct imatrix_facts *facts,
                                 struct allot_error *err)
{
    if (!facts->sha256[0])
        return ALLOT_OK;
    json_t *object = json_object();
    json_put(object, "path", json_text(facts->path));
    json_put(object, "dataset", json_text(facts->dataset));
    json_put(object, "entries", json_integer(facts->n_entries));
    json_put(object, "chunks", json_integer(facts->n_chunks));
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (!text)
        return allot_fail_memory(err, sizeof *facts, "facts about the imatrix");
    allot_status status = archive_blob_put(archive, FACTS_KIND, facts->sha256, text, strlen(text), err);
    free(text);
    return status;
}

static void copy_text(char *to, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, size, "%s", text ? text : "");
}

allot_status imatrix_facts_load(struct imatrix_facts *facts, struct archive *archive, const char *sha256,
                                struct allot_error *err)
{
    void *text = NULL;
    size_t size = 0;
    memset(facts, 0, sizeof *facts);
    snprintf(facts->sha256, sizeof facts->sha256, "%s", sha256);
    if (!sha256[0])
        return ALLOT_OK;
    allot_status status = archive_blob(archive, FACTS_KIND, sha256, &text, &size, err);
    if (status == ALLOT_OK && text) {
        json_t *object = json_loadb(text, size, 0, NULL);
        copy_text(facts->path, sizeof facts->path, object, "path");
        copy_text(facts->dataset, sizeof facts->dataset, object, "dataset");
        facts->n_entries = json_integer_value(json_object_get(object, "entries"));
        facts->n_chunks = json_integer_value(json_object_get(object, "chunks"));
        json_decref(object);
    }
    free(text);
    return status;
}

static void add_str(struct provenance *p, const char *key, const char *value)
{
    p->keys[p->n_keys++] = (struct quantize_key){.key = key, .str = value};
}

static void add_u32(struct provenance *p, const char *key, uint32_t value)
{
    p->keys[p->n_keys++] = (struct quantize_key){.key = key, .u32 = value};
}

void provenance_fill(struct provenance *p, const struct imatrix_facts *facts, const char *imatrix_path,
                     const char *source_sha256)
{
    memset(p, 0, sizeof *p);
    if (facts->sha256[0]) {
        copy_127(p->imatrix_file, imatrix_path);
        add_str(p, "quantize.imatrix.file", p->imatrix_file);
        if (facts->dataset[0]) {
            copy_127(p->imatrix_dataset, facts->dataset);
            add_str(p, "quantize.imatrix.dataset", p->imatrix_dataset);
        }
        add_u32(p, "quantize.imatrix.entries_count", (uint32_t)facts->n_entries);
        if (facts->n_chunks > 0)
            add_u32(p, "quantize.imatrix.chunks_count", (uint32_t)facts->n_chunks);
    }
    p->n_stock_keys = p->n_keys;
    add_str(p, "allot.version", ALLOT_VERSION);
    if (facts->sha256[0]) {
        snprintf(p->imatrix_sha256, sizeof p->imatrix_sha256, "%s", facts->sha256);
        add_str(p, "allot.imatrix.sha256", p->imatrix_sha256);
    }
    snprintf(p->source_sha256, sizeof p->source_sha256, "%s", source_sha256);
    add_str(p, "allot.source.sha256", p->source_sha256);
}
