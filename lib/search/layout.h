/* layout.h - which type each tensor of a published GGUF has, with where that file came from.
 * SPDX-License-Identifier: MIT
 *
 * Types are those of the tensors; general.file_type is never asked, for it need not say what is in the file.
 * F32, F16 and BF16 are one class: what a layout keeps exact is rebuilt as the type that the user's own model
 * has there. */
#ifndef ALLOT_SEARCH_LAYOUT_H
#define ALLOT_SEARCH_LAYOUT_H

#include "archive/archive.h"
#include "base/hash.h"
#include "gguf/model.h"
#include "search/roles.h"

struct layout_tensor {
    char *name;
    enum ggml_type type;
    int layer; /* N of "blk.N.", else -1 */
    enum role role;
    int64_t n_elements;
};

struct layout {
    char *name;
    char *architecture;
    char *repository, *revision; /* "" where not known */
    char *file;                  /* its name in the repository; of a split model the first one's */
    char *date;                  /* when it was learned, "2026-01-31" */
    int64_t bytes;               /* of all files */
    char sha256[HASH_HEX];       /* of all files' bytes: what a layout is kept by */
    bool learning_only;          /* its groups may be used, the whole file is no candidate */
    struct layout_tensor *tensors;
    size_t n_tensors;    /* in llama-quantize's order: (layer, name) */
    int n_layers;        /* without those of ROLE_MTP */
    char hash[HASH_HEX]; /* of architecture, names and classes of types: equal layouts have equal hashes */
};

/* What the caller knows of a file. Strings are copied; NULL: not known. */
struct layout_origin {
    const char *name; /* NULL: that of the file, without ".gguf" and "-00001-of-00002" */
    const char *repository, *revision, *file;
    const char *date;
    bool learning_only;
};

/* "REPOSITORY@REVISION:FILE"; "@REVISION" and ":FILE" may be absent. Fills the three of the origin with
 * pointers into *copy, which the caller frees. */
allot_status layout_origin_parse(struct layout_origin *origin, char **copy, const char *text,
                                 struct allot_error *err);

/* From an open model and its gguf_model_sha256. ALLOT_ERR_FORMAT: the file has no architecture, or no
 * tensors, so it is no model; ALLOT_ERR_ARGUMENT: no name can be made of the file's, or a text of the origin
 * cannot be kept (control characters; a name with ',' or '=', which are --hybrid's; that of a mix of
 * llama-quantize). */
allot_status layout_learn(struct layout *out, const struct gguf_model *model, const char *sha256,
                          const struct layout_origin *origin, struct allot_error *err);
void layout_release(struct layout *layout);

/* Can others get the very file? A repository, and a revision that can never mean another state: 40 or 64
 * hexadecimal digits. */
bool layout_reproducible(const struct layout *layout);

/* Of the class of types that are kept exact. */
static inline bool layout_exact_type(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

/* ---- In an archive ---------------------------------------------------------------------------------- */

/* By rising name. */
struct layout_list {
    struct layout *items;
    size_t n;
};

/* All layouts of an archive; NULL: none. ALLOT_ERR_FORMAT names a damaged one. */
allot_status layout_list_load(struct layout_list *list, struct archive *archive, struct allot_error *err);
void layout_list_release(struct layout_list *list);
/* The layout of the name, or else of the file whose SHA-256 begins with it (8 digits or more); NULL: none, or
 * several of one name, as merged archives can hold them: then *ambiguous. */
const struct layout *layout_list_find(const struct layout_list *list, const char *name, bool *ambiguous);

/* Stores it in place of an earlier one of the same file. ALLOT_ERR_ARGUMENT: another file's has the name. */
allot_status layout_put(struct archive *archive, const struct layout *layout, struct allot_error *err);

#endif
