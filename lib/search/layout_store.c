/* layout_store.c - layouts in an archive: blobs of the kind "layout", by the learned file's SHA-256.
 * SPDX-License-Identifier: MIT
 *
 * A blob is a sequence of strings, each with its final NUL: a mark, what is known of the file, the number of
 * tensors, and three strings for each. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "search/layout.h"
#include "search/layout_parts.h"

static const char kind[] = "layout", mark[] = "allot layout 1";

enum { STRINGS_PER_TENSOR = 3, MIN_PREFIX = 8 };

/* ---- Writing ---------------------------------------------------------------------------------------- */

static void put_text(struct strbuf *sb, const char *text)
{
    strbuf_add(sb, text, strlen(text) + 1);
}

static void put_number(struct strbuf *sb, int64_t number)
{
    strbuf_addf(sb, "%" PRId64, number);
    strbuf_add(sb, "", 1);
}

static void encode(struct strbuf *sb, const struct layout *l)
{
    const char *const texts[] = {mark,    l->name, l->architecture, l->repository, l->revision,
                                 l->file, l->date, l->sha256,       l->hash};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        put_text(sb, texts[i]);
    put_number(sb, l->bytes);
    put_number(sb, l->learning_only);
    put_number(sb, (int64_t)l->n_tensors);
    for (size_t i = 0; i < l->n_tensors; i++) {
        put_text(sb, l->tensors[i].name);
        put_text(sb, ggml_type_name(l->tensors[i].type));
        put_number(sb, l->tensors[i].n_elements);
    }
}

allot_status layout_put(struct archive *archive, const struct layout *layout, struct allot_error *err)
{
    struct strbuf sb = {0};
    struct layout_list list;
    allot_status status = layout_list_load(&list, archive, err);
    for (size_t i = 0; status == ALLOT_OK && i < list.n; i++)
        if (strcmp(list.items[i].name, layout->name) == 0 &&
            strcmp(list.items[i].sha256, layout->sha256) != 0)
            status = allot_fail(err, ALLOT_ERR_ARGUMENT,
                                "the name '%s' is taken by the layout of another file, %s (SHA-256 %.8s...)",
                                layout->name, list.items[i].file, list.items[i].sha256);
    if (status == ALLOT_OK) {
        encode(&sb, layout);
        status = strbuf_check(&sb, err);
    }
    if (status == ALLOT_OK)
        status = archive_blob_put(archive, kind, layout->sha256, sb.data, sb.len, err);
    strbuf_release(&sb);
    layout_list_release(&list);
    return status;
}

/* ---- Reading ---------------------------------------------------------------------------------------- */

/* What is left of a blob; good turns false where it ends too early or says what cannot be. */
struct reader {
    const char *at;
    size_t left;
    bool good;
};

static const char *get_text(struct reader *r)
{
    const char *text = r->at, *end = r->left ? memchr(r->at, '\0', r->left) : NULL;
    if (!r->good || !end) {
        r->good = false;
        return "";
    }
    r->left -= (size_t)(end + 1 - r->at);
    r->at = end + 1;
    return text;
}

static int64_t get_number(struct reader *r, int64_t least, int64_t most)
{
    char again[32];
    const char *text = get_text(r);
    const int64_t number = strtoll(text, NULL, 10);
    snprintf(again, sizeof again, "%" PRId64, number);
    if (strcmp(text, again) != 0 || number < least || number > most)
        r->good = false;
    return r->good ? number : 0;
}

static enum ggml_type get_type(struct reader *r)
{
    const char *text = get_text(r);
    for (int type = 0; r->good && type < GGML_TYPE_COUNT; type++)
        if (ggml_blck_size((enum ggml_type)type) > 0 && ggml_type_name((enum ggml_type)type) &&
            strcmp(ggml_type_name((enum ggml_type)type), text) == 0)
            return (enum ggml_type)type;
    r->good = false;
    return GGML_TYPE_F32;
}

/* A copy; NULL without memory. */
static char *copy_next(struct reader *r)
{
    return strdup(get_text(r));
}

static bool decode_tensors(struct layout *out, struct reader *r)
{
    const size_t n = (size_t)get_number(r, 0, (int64_t)(r->left / STRINGS_PER_TENSOR));
    out->tensors = calloc(n + 1, sizeof *out->tensors);
    for (size_t i = 0; out->tensors && r->good && i < n; i++) {
        struct layout_tensor *t = &out->tensors[out->n_tensors++];
        t->name = copy_next(r);
        if (!t->name)
            return false;
        t->type = get_type(r);
        t->n_elements = get_number(r, 0, INT64_MAX);
    }
    return out->tensors != NULL;
}

/* False: no memory. */
static bool decode_texts(struct layout *out, struct reader *r, char hash[static HASH_HEX])
{
    char **const texts[] = {&out->name,     &out->architecture, &out->repository,
                            &out->revision, &out->file,         &out->date};
    r->good &= strcmp(get_text(r), mark) == 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!(*texts[i] = copy_next(r)))
            return false;
    for (int i = 0; i < 2; i++) {
        const char *hex = get_text(r);
        r->good &= strlen(hex) == HASH_HEX - 1;
        if (r->good)
            memcpy(i == 0 ? out->sha256 : hash, hex, HASH_HEX);
    }
    out->bytes = get_number(r, 0, INT64_MAX);
    out->learning_only = get_number(r, 0, 1) != 0;
    return true;
}

static allot_status decode(struct layout *out, const char *path, const char *key, const void *data,
                           size_t size, struct allot_error *err)
{
    struct reader r = {data, size, true};
    char hash[HASH_HEX] = "";
    memset(out, 0, sizeof *out);
    allot_status status = decode_texts(out, &r, hash) && decode_tensors(out, &r)
                              ? ALLOT_OK
                              : allot_fail_memory(err, size, "a layout");
    if (status == ALLOT_OK && r.good)
        status = layout_find_roles(out, err);
    if (status == ALLOT_OK && r.good)
        status = layout_hash(out->hash, out, err);
    if (status == ALLOT_OK &&
        (!r.good || r.left > 0 || strcmp(hash, out->hash) != 0 || strcmp(key, out->sha256) != 0))
        status = allot_fail(
            err, ALLOT_ERR_FORMAT,
            "archive %s: the layout of the file with SHA-256 %.16s... is damaged, or of a newer allot", path,
            key);
    if (status != ALLOT_OK)
        layout_release(out);
    return status;
}

struct loading {
    struct layout_list *list;
    const char *path;
    size_t cap;
    allot_status status;
    struct allot_error *err;
};

static bool load_one(void *user, const char *key, const void *data, size_t size)
{
    struct loading *l = user;
    if (l->list->n == l->cap) {
        const size_t cap = l->cap ? 2 * l->cap : 16;
        struct layout *grown = realloc(l->list->items, cap * sizeof *grown);
        if (!grown) {
            l->status = allot_fail_memory(l->err, cap * sizeof *grown, "layouts");
            return true;
        }
        l->list->items = grown;
        l->cap = cap;
    }
    l->status = decode(&l->list->items[l->list->n], l->path, key, data, size, l->err);
    l->list->n += l->status == ALLOT_OK;
    return l->status != ALLOT_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct layout *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->sha256, y->sha256);
}

allot_status layout_list_load(struct layout_list *list, struct archive *archive, struct allot_error *err)
{
    struct loading l = {.list = list, .err = err};
    memset(list, 0, sizeof *list);
    if (!archive)
        return ALLOT_OK;
    l.path = archive_path(archive);
    allot_status status = archive_blob_each(archive, kind, load_one, &l, err);
    if (status == ALLOT_OK)
        status = l.status;
    if (status != ALLOT_OK)
        layout_list_release(list);
    else if (list->n)
        qsort(list->items, list->n, sizeof *list->items, by_name);
    return status;
}

void layout_list_release(struct layout_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        layout_release(&list->items[i]);
    free(list->items);
    memset(list, 0, sizeof *list);
}

const struct layout *layout_list_find(const struct layout_list *list, const char *name, bool *ambiguous)
{
    const size_t n = strlen(name);
    const struct layout *named = NULL, *hashed = NULL;
    size_t n_named = 0, n_hashed = 0;
    for (size_t i = 0; i < list->n; i++) {
        const struct layout *layout = &list->items[i];
        if (strcmp(layout->name, name) == 0) {
            named = layout;
            n_named++;
        } else if (n >= MIN_PREFIX && strncmp(layout->sha256, name, n) == 0) {
            hashed = layout;
            n_hashed++;
        }
    }
    *ambiguous = n_named > 1 || (n_named == 0 && n_hashed > 1);
    return *ambiguous ? NULL : named ? named : hashed;
}
