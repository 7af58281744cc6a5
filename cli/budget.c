/* budget.c - how large the file may be: --size, --bpw or --like.  SPDX-License-Identifier: MIT */
#include "budget.h"

#include "base/error.h"
#include "describe.h"

static const struct option_row rows[] = {
    {"size", 0, "N", OPTION_SIZE, offsetof(struct sized_arguments, size), NULL, 0,
     "the file may have N bytes at most (6GB, 5.5GiB, 104857600), header and padding included"},
    {"bpw", 0, "X", OPTION_DOUBLE, offsetof(struct sized_arguments, bpw), NULL, 0,
     "the tensors may take X bits per weight at most, counted as llama-quantize does, without the header"},
    {"like", 0, "FILE", OPTION_STRING, offsetof(struct sized_arguments, like), NULL, 0,
     "the file may be as large as FILE, another GGUF, at most"},
};
const struct option_set budget_options = OPTION_SET(rows);

int budget_options_given(const struct sized_arguments *args)
{
    return (args->size != 0) + (args->bpw != 0) + (args->like != NULL);
}

allot_status budget_resolve(int64_t *budget, const struct sized_arguments *args,
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
        *budget = args->size;
        return ALLOT_OK;
    }
    if (args->bpw > 64)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%g bits per weight are more than any type has",
                          args->bpw);
    *budget = header_bytes + (int64_t)(args->bpw * (double)model_parameters(model) / 8);
    return ALLOT_OK;
}
