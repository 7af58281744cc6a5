/* budget.c - how large the file may be: --size (several), --bpw or --like.  SPDX-License-Identifier: MIT */
#include "budget.h"

#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "describe.h"

static const struct option_row rows[] = {
    {"size", 0, "N,...", OPTION_STRING, offsetof(struct sized_arguments, sizes), NULL, 0,
     "the file may have N bytes at most (6GB, 5.5GiB, 104857600), header and padding included; of several "
     "sizes "
     "each gets a plan, and {} in the name of the output becomes the size"},
    {"bpw", 0, "X", OPTION_DOUBLE, offsetof(struct sized_arguments, bpw), NULL, 0,
     "the tensors may take X bits per weight at most, counted as llama-quantize does, without the header"},
    {"like", 0, "FILE", OPTION_STRING, offsetof(struct sized_arguments, like), NULL, 0,
     "the file may be as large as FILE, another GGUF, at most"},
};
const struct option_set budget_options = OPTION_SET(rows);

int budget_options_given(const struct sized_arguments *args)
{
    return (args->sizes != NULL) + (args->bpw != 0) + (args->like != NULL);
}

static allot_status add_rung(struct ladder *ladder, const char *text, size_t n, struct allot_error *err)
{
    struct rung *rung = &ladder->rungs[ladder->n];
    if (ladder->n == MAX_RUNGS)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--size: more than %d sizes", MAX_RUNGS);
    if (n < sizeof rung->text) {
        memcpy(rung->text, text, n);
        rung->text[n] = '\0';
    }
    if (n >= sizeof rung->text || !str_parse_size(rung->text, &rung->bytes) || rung->bytes == 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--size: '%.*s' is not a size (such as 6GB, 5.5GiB or 104857600)",
                          n < 60 ? (int)n : 60, text);
    for (size_t i = 0; i < ladder->n; i++)
        if (strcasecmp(ladder->rungs[i].text, rung->text) == 0)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "--size: %s is given twice", rung->text);
    ladder->n++;
    return ALLOT_OK;
}

allot_status ladder_parse(struct ladder *ladder, const struct sized_arguments *args, struct allot_error *err)
{
    memset(ladder, 0, sizeof *ladder);
    if (!args->sizes) {
        ladder->n = 1;
        return ALLOT_OK;
    }
    for (const char *p = args->sizes;; p++) {
        const size_t n = strcspn(p, ",");
        if (add_rung(ladder, p, n, err) != ALLOT_OK)
            return err->status;
        p += n;
        if (!*p)
            return ALLOT_OK;
    }
}

char *ladder_path(const char *path, const struct rung *rung)
{
    struct strbuf sb = {0};
    strbuf_addf(&sb, "%s", "");
    while (*path) {
        const bool replaces = rung->text[0] && path[0] == '{' && path[1] == '}';
        if (replaces)
            strbuf_addf(&sb, "%s", rung->text);
        else
            strbuf_add(&sb, path, 1);
        path += replaces ? 2 : 1;
    }
    if (sb.failed)
        strbuf_release(&sb);
    return sb.data;
}

allot_status ladder_check_path(const struct ladder *ladder, const char *path, struct allot_error *err)
{
    if (ladder->n > 1 && path && !strstr(path, "{}"))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s: several sizes need {} in the name of the output, where the size goes", path);
    return ALLOT_OK;
}

allot_status budget_resolve(int64_t *budget, const struct sized_arguments *args, const struct rung *rung,
                            const struct gguf_model *model, int64_t header_bytes, struct allot_error *err)
{
    if (args->like) {
        struct gguf_model *like = NULL;
        allot_status status = gguf_model_open(&like, args->like, err);
        if (status == ALLOT_OK)
            *budget = like->total_bytes;
        gguf_model_close(like);
        return status;
    }
    if (args->bpw == 0) {
        *budget = rung->bytes ? rung->bytes : INT64_MAX;
        return ALLOT_OK;
    }
    if (args->bpw > 64)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%g bits per weight are more than any type has",
                          args->bpw);
    *budget = header_bytes + (int64_t)(args->bpw * (double)model_parameters(model) / 8);
    return ALLOT_OK;
}
