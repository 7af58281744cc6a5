/* layout.c - which type each tensor of a published GGUF has: learned from the file.
 * SPDX-License-Identifier: MIT */
#include "search/layout.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strbuf.h"
#include "search/layout_parts.h"
#include "search/mix.h"

enum { MAX_TEXT = 1024 };

/* ---- Where a file came from ------------------------------------------------------------------------- */

static allot_status bad_origin(const char *text, struct allot_error *err)
{
    return allot_fail(err, ALLOT_ERR_ARGUMENT, "'%s' is no REPOSITORY@REVISION:FILE", text);
}

allot_status layout_origin_parse(struct layout_origin *origin, char **copy, const char *text,
                                 struct allot_error *err)
{
    char *words = strdup(text);
    if (!words)
        return allot_fail_memory(err, strlen(text), "a source");
    char *colon = strrchr(words, ':');
    if (colon)
        *colon = '\0';
    char *at = strrchr(words, '@');
    if (at)
        *at = '\0';
    if (!words[0] || (at && !at[1]) || (colon && !colon[1])) {
        free(words);
        return bad_origin(text, err);
    }
    origin->repository = words;
    origin->revision = at ? at + 1 : NULL;
    origin->file = colon ? colon + 1 : NULL;
    *copy = words;
    return ALLOT_OK;
}

bool layout_reproducible(const struct layout *layout)
{
    const size_t n = strlen(layout->revision);
    return layout->repository[0] && (n == 40 || n == 64) &&
           strspn(layout->revision, "0123456789abcdefABCDEF") == n;
}

static bool has_control(const char *text)
{
    for (; *text; text++)
        if (iscntrl((unsigned char)*text))
            return true;
    return false;
}

static allot_status copy_text(char **to, const char *text, const char *what, struct allot_error *err)
{
    if (!text)
        text = "";
    if (has_control(text) || strlen(text) > MAX_TEXT)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s '%.100s' is too long or has control characters", what,
                          text);
    *to = strdup(text);
    return *to ? ALLOT_OK : allot_fail_memory(err, strlen(text), what);
}

/* ---- Names ------------------------------------------------------------------------------------------ */

/* Without ".gguf", and without "-00001-of-00003" before it. */
static size_t plain_length(const char *file)
{
    static const char part[] = "-00000-of-00000";
    size_t n = strlen(file), i = 0;
    if (str_ends_with(file, ".gguf"))
        n -= strlen(".gguf");
    if (n <= strlen(part))
        return n;
    for (const char *tail = file + n - strlen(part); part[i]; i++)
        if (part[i] == '0' ? !isdigit((unsigned char)tail[i]) : tail[i] != part[i])
            return n;
    return n - strlen(part);
}

static allot_status choose_name(struct layout *out, const struct layout_origin *origin,
                                struct allot_error *err)
{
    char *name = origin->name ? strdup(origin->name)
                              : strndup(file_base_name(out->file), plain_length(file_base_name(out->file)));
    if (!name)
        return allot_fail_memory(err, MAX_TEXT, "a name");
    allot_status status = ALLOT_OK;
    if (!name[0] || strpbrk(name, ",="))
        status = allot_fail(err, ALLOT_ERR_ARGUMENT,
                            "'%s' cannot name a layout: it must not be empty, nor hold ',' or '='", name);
    else if (mix_find(name))
        status = allot_fail(err, ALLOT_ERR_ARGUMENT,
                            "'%s' cannot name a layout: it is a mix of llama-quantize; --name gives another",
                            name);
    if (status == ALLOT_OK)
        status = copy_text(&out->name, name, "the name", err);
    free(name);
    return status;
}

/* ---- Tensors ---------------------------------------------------------------------------------------- */

static allot_status copy_tensors(struct layout *out, const struct gguf_model *model, struct allot_error *err)
{
    out->tensors = calloc((size_t)model->n_tensors + 1, sizeof *out->tensors);
    if (!out->tensors)
        return allot_fail_memory(err, (size_t)model->n_tensors * sizeof *out->tensors, "a layout");
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *from = &model->tensors[i];
        struct layout_tensor *to = &out->tensors[out->n_tensors++];
        *to = (struct layout_tensor){
            .name = strdup(from->name), .type = from->type, .n_elements = from->n_elements};
        if (!to->name)
            return allot_fail_memory(err, strlen(from->name), "a layout");
    }
    return ALLOT_OK;
}

/* What types are compared by. */
static const char *type_class(enum ggml_type type)
{
    return layout_exact_type(type) ? "exact" : ggml_type_name(type);
}

allot_status layout_hash(char hex[static HASH_HEX], const struct layout *layout, struct allot_error *err)
{
    struct hash *hash;
    allot_status status = hash_new(&hash, err);
    if (status != ALLOT_OK)
        return status;
    hash_update_str(hash, layout->architecture);
    for (size_t i = 0; i < layout->n_tensors; i++) {
        hash_update_str(hash, layout->tensors[i].name);
        hash_update_str(hash, type_class(layout->tensors[i].type));
    }
    hash_final(hash, hex);
    return ALLOT_OK;
}

allot_status layout_find_roles(struct layout *layout, struct allot_error *err)
{
    const size_t n = layout->n_tensors;
    const char **names = calloc(n + 1, sizeof *names);
    enum role *roles = calloc(n + 1, sizeof *roles);
    allot_status status = names && roles ? ALLOT_OK : allot_fail_memory(err, n * sizeof *names, "a layout");
    for (size_t i = 0; status == ALLOT_OK && i < n; i++)
        names[i] = layout->tensors[i].name;
    if (status == ALLOT_OK) {
        roles_of(roles, layout->architecture, names, n);
        layout->n_layers = roles_depth(roles, names, n);
    }
    for (size_t i = 0; status == ALLOT_OK && i < n; i++) {
        layout->tensors[i].role = roles[i];
        layout->tensors[i].layer = role_layer(names[i]);
    }
    free(names);
    free(roles);
    return status;
}

/* ---- Learning --------------------------------------------------------------------------------------- */

static allot_status take_origin(struct layout *out, const struct gguf_model *model,
                                const struct layout_origin *origin, struct allot_error *err)
{
    const char *path = gguf_model_shard_path(model, 0);
    allot_status status = copy_text(&out->repository, origin->repository, "the repository", err);
    if (status == ALLOT_OK)
        status = copy_text(&out->revision, origin->revision, "the revision", err);
    if (status == ALLOT_OK)
        status =
            copy_text(&out->file, origin->file ? origin->file : file_base_name(path), "the file's name", err);
    if (status == ALLOT_OK)
        status = copy_text(&out->date, origin->date, "the date", err);
    if (status == ALLOT_OK)
        status = choose_name(out, origin, err);
    out->learning_only = origin->learning_only;
    return status;
}

allot_status layout_learn(struct layout *out, const struct gguf_model *model, const char *sha256,
                          const struct layout_origin *origin, struct allot_error *err)
{
    memset(out, 0, sizeof *out);
    char *architecture = gguf_model_str(model, "general.architecture");
    allot_status status = ALLOT_OK;
    if (!architecture || !architecture[0] || model->n_tensors == 0)
        status = allot_fail(err, ALLOT_ERR_FORMAT, "%s: is no model: it has no %s", model->path,
                            model->n_tensors ? "general.architecture" : "tensors");
    if (status == ALLOT_OK)
        status = copy_text(&out->architecture, architecture, "the architecture", err);
    if (status == ALLOT_OK)
        status = take_origin(out, model, origin, err);
    if (status == ALLOT_OK)
        status = copy_tensors(out, model, err);
    if (status == ALLOT_OK)
        status = layout_find_roles(out, err);
    if (status == ALLOT_OK)
        status = layout_hash(out->hash, out, err);
    out->bytes = model->total_bytes;
    memcpy(out->sha256, sha256, strnlen(sha256, HASH_HEX - 1));
    free(architecture);
    if (status != ALLOT_OK)
        layout_release(out);
    return status;
}

void layout_release(struct layout *layout)
{
    for (size_t i = 0; i < layout->n_tensors; i++)
        free(layout->tensors[i].name);
    free(layout->tensors);
    free(layout->name);
    free(layout->architecture);
    free(layout->repository);
    free(layout->revision);
    free(layout->file);
    free(layout->date);
    memset(layout, 0, sizeof *layout);
}
