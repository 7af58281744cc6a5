/* mix-types.c - the types that mixes give to a model's tensors, by lib/search.  SPDX-License-Identifier: MIT
 *
 * usage: mix-types                 the names of all mixes
 *        mix-types MODEL MIX...    for each mix, without an importance matrix and with one: a line that says
 * so, and NAME TYPE of each tensor, behind them "imatrix needed" where it would be; or just "refused", and
 * the reason on stderr */
#include <stdio.h>
#include <stdlib.h>

#include "search/mix.h"

static void print_types(const struct gguf_model *model, const char *mix, bool has_imatrix,
                        enum ggml_type *types)
{
    struct allot_error err;
    bool needed = false;
    printf("== %s %s\n", mix, has_imatrix ? "with-imatrix" : "alone");
    if (mix_types(types, model, mix, has_imatrix, &err) != ALLOT_OK) {
        fprintf(stderr, "mix-types: %s\n", err.message);
        puts("refused");
        return;
    }
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        printf("%s %s\n", tensor->name, ggml_type_name(types[i]));
        needed |= gguf_tensor_quantizable(tensor) && mix_needs_imatrix(mix, types[i], tensor->name);
    }
    if (needed && !has_imatrix)
        puts("imatrix needed");
}

int main(int argc, char **argv)
{
    struct allot_error err;
    struct gguf_model *model = NULL;
    for (size_t i = 0; argc == 1 && i < mix_count(); i++)
        puts(mix_name(i));
    if (argc == 1)
        return 0;
    if (gguf_model_open(&model, argv[1], &err) != ALLOT_OK) {
        fprintf(stderr, "mix-types: %s\n", err.message);
        return 1;
    }
    enum ggml_type *types = calloc((size_t)model->n_tensors + 1, sizeof *types);
    for (int i = 2; types && i < argc; i++)
        for (int with = 0; with < 2; with++)
            print_types(model, argv[i], with, types);
    free(types);
    gguf_model_close(model);
    return types && fflush(stdout) == 0 ? 0 : 1;
}
