/* load.h - a GGUF model opened by libllama, after allot's own checks.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEXT_LOAD_H
#define ALLOT_TEXT_LOAD_H

#include "allot.h"
#include "llama.h"

/* What of a model is loaded; weights are mapped. */
enum text_load {
    TEXT_LOAD_VOCABULARY, /* no weights */
    TEXT_LOAD_MODEL,    /* as llama.cpp's programs do: some types are repacked for this processor's kernels */
    TEXT_LOAD_AS_STORED /* every weight in the layout of its type: a tensor can take another's place */
};

/* The file is checked by gguf_model_open and check.h first, because libllama aborts the process on some that
 * are damaged (hyperparameters and weights only if they are to be loaded). Any shard of a split model may be
 * named. Free with llama_model_free. */
allot_status text_llama_load(struct llama_model **out, const char *path, enum text_load what,
                             struct allot_error *err);

#endif
