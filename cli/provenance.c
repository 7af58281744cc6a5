/* provenance.c - the metadata keys that say what a quantized file was made from.
 * SPDX-License-Identifier: MIT */
#include "provenance.h"

#include <stdio.h>
#include <string.h>

/* As strncpy with 127 bytes and a NUL, which is what llama-quantize keeps of its strings. */
static void copy_127(char to[static 128], const char *from)
{
    size_t n = strnlen(from, 127);
    memcpy(to, from, n);
    to[n] = '\0';
}

static void add_str(struct provenance *p, const char *key, const char *value)
{
    p->keys[p->n_keys++] = (struct quantize_key){.key = key, .str = value};
}

static void add_u32(struct provenance *p, const char *key, uint32_t value)
{
    p->keys[p->n_keys++] = (struct quantize_key){.key = key, .u32 = value};
}

void provenance_fill(struct provenance *p, const struct job_imatrix *im, const char *imatrix_path,
                     const char *source_sha256)
{
    memset(p, 0, sizeof *p);
    if (im->present) {
        copy_127(p->imatrix_file, imatrix_path);
        add_str(p, "quantize.imatrix.file", p->imatrix_file);
        if (im->data.n_datasets) {
            copy_127(p->imatrix_dataset, im->data.datasets[0]);
            add_str(p, "quantize.imatrix.dataset", p->imatrix_dataset);
        }
        add_u32(p, "quantize.imatrix.entries_count", (uint32_t)im->data.n_entries);
        if (im->data.chunk_count > 0)
            add_u32(p, "quantize.imatrix.chunks_count", (uint32_t)im->data.chunk_count);
    }
    p->n_stock_keys = p->n_keys;
    add_str(p, "allot.version", ALLOT_VERSION);
    if (im->present) {
        snprintf(p->imatrix_sha256, sizeof p->imatrix_sha256, "%s", im->data.sha256);
        add_str(p, "allot.imatrix.sha256", p->imatrix_sha256);
    }
    snprintf(p->source_sha256, sizeof p->source_sha256, "%s", source_sha256);
    add_str(p, "allot.source.sha256", p->source_sha256);
}

void provenance_add_rounding(struct provenance *p, const char *name, const char *text_sha256)
{
    snprintf(p->rounding, sizeof p->rounding, "%s %s", name, text_sha256);
    add_str(p, "allot.rounding", p->rounding);
}
