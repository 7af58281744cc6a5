/* plain_job.h - one small job that the tests of interrupted and refused runs share.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_TEST_QUANT_PLAIN_JOB_H
#define ALLOT_TEST_QUANT_PLAIN_JOB_H

#include "quant/fixture.h"

static uint64_t seed;
static char reference[65]; /* SHA-256 of the uninterrupted output */
static struct gguf_model *model;
static enum ggml_type *types;

#define OUT in_folder("out.gguf")
#define PARTIAL in_folder("out.gguf.allot-partial")

static inline allot_status run_job(const struct quantize_job *job, struct quantize_result *result,
                                   const struct allot_progress *progress, struct allot_error *err)
{
    struct pool *pool;
    if (pool_new(&pool, 2, err))
        return err->status;
    const allot_status status = quantize_write(job, pool, result, progress, err);
    pool_free(pool);
    return status;
}

static inline struct quantize_job plain_job(void)
{
    return (struct quantize_job){
        .model = model, .types = types, .file_type = 15, .out_path = OUT, .identity = "one"};
}

static inline void overwrite(const char *path, int64_t offset, const void *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, offset), n);
    close(fd);
}

static inline int start(void **state)
{
    if (make_folder(state))
        return -1;
    write_fixture_model(in_folder("model.gguf"), GGML_TYPE_F32, seed);
    model = open_model(in_folder("model.gguf"));
    types = calloc((size_t)model->n_tensors, sizeof *types);
    static const enum ggml_type cycle[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K, GGML_TYPE_Q3_K};
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        types[i] = gguf_tensor_quantizable(t) ? quant_type_fallback(cycle[i % 4], t->ne[0]) : t->type;
    }
    const struct quantize_job job = plain_job();
    struct quantize_result result;
    struct allot_error err;
    if (run_job(&job, &result, NULL, &err))
        return -1;
    memcpy(reference, result.sha256, sizeof reference);
    unlink(OUT);
    return 0;
}

static inline int finish(void **state)
{
    gguf_model_close(model);
    free(types);
    return remove_folder(state);
}

#endif
