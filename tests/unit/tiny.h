/* tiny.h - the small trained model of the tests.  SPDX-License-Identifier: MIT */
#ifndef TESTS_TINY_H
#define TESTS_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf.h"

static const char tiny_path[] = TEST_DATA_DIR "/tiny-llama-bf16.gguf";

/* A copy of its metadata, which ggml owns. */
static inline struct gguf_context *tiny_metadata(void)
{
    struct gguf_context *source =
        gguf_init_from_file(tiny_path, (struct gguf_init_params){.no_alloc = true, .ctx = NULL});
    struct gguf_context *copy = gguf_init_empty();
    assert_non_null(source);
    gguf_set_kv(copy, source);
    gguf_free(source);
    return copy;
}

#endif
