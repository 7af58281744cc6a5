/* load.c - a GGUF model opened by libllama, after allot's own checks.  SPDX-License-Identifier: MIT */
#include "text/load.h"

#include "base/error.h"
#include "gguf/model.h"
#include "text/check.h"
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

/* libllama wants the first shard; gguf_model_open has already checked that the name ends in
 * -NNNNN-of-NNNNN.gguf. */
static char *first_shard_path(const struct gguf_model *model)
{
    static const char pattern[] = "-00001-of-00001.gguf";
    char *path = strdup(model->path);
    size_t len = path == NULL ? 0 : strlen(path);
    if (model->n_shards > 1 && len >= sizeof pattern - 1)
        memcpy(path + len - (sizeof pattern - 1), pattern, 6);
    return path;
}

allot_status text_llama_load(struct llama_model **out, const char *path, enum text_load what,
                             struct allot_error *err)
{
    struct gguf_model *checked = NULL;
    char *first_path = NULL;
    *out = NULL;
    allot_status status = gguf_model_open(&checked, path, err);
    if (status == ALLOT_OK)
        status = check_token_list(checked, err);
    if (status == ALLOT_OK && what != TEXT_LOAD_VOCABULARY)
        status = check_hyperparameters(checked, err);
    if (status == ALLOT_OK && what != TEXT_LOAD_VOCABULARY)
        status = check_tensor_types(checked, err);
    if (status != ALLOT_OK)
        goto done;
    first_path = first_shard_path(checked);
    if (first_path == NULL) {
        status = allot_fail_memory(err, strlen(path) + 1, "a path");
        goto done;
    }
    text_capture_llama_log();
    text_forget_llama_error();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = what == TEXT_LOAD_VOCABULARY;
    params.use_extra_bufts = what != TEXT_LOAD_AS_STORED;
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    *out = llama_model_load_from_file(first_path, params);
    if (*out == NULL) {
        const char *cause = text_last_llama_error();
        status = allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: libllama cannot load it: %s", path,
                            cause[0] != '\0' ? cause : "no reason given");
    }
done:
    free(first_path);
    gguf_model_close(checked);
    return status;
}
