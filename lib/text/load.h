/* load.h - a GGUF model opened by libllama, after allot's own checks.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEXT_LOAD_H
#define ALLOT_TEXT_LOAD_H

#include "allot.h"
#include "llama.h"

/* Loads a model, or only its vocabulary, mapping its weights. The file is checked by gguf_model_open
 * and check.h first, because libllama aborts the process on some that are damaged (hyperparameters and
 * weights only if they are to be loaded). Any shard of a split model may be named. Free with
 * llama_model_free. */
allot_status text_llama_load(struct llama_model **out, const char *path, bool vocab_only,
                             struct allot_error *err);

#endif
