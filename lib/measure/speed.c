/* speed.c - how long ggml's CPU kernels take to read weights of a type.  SPDX-License-Identifier: MIT */
#include "measure/speed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/num.h"
#include "base/rng.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "text/text.h"

enum { LEAST_RUNS = 3, MOST_RUNS = 1000, N_OBJECTS = 8, MIB = 1 << 20 };

int64_t speed_default_bytes(void)
{
    int64_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = most(sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
    const int64_t wanted = least(most(2 * cache, 64 * (int64_t)MIB), 512 * (int64_t)MIB);
    return most(least(wanted, memory_limit() / 16), MIB);
}

/* One matrix, one vector and their product, each tensor in a buffer. */
struct product {
    struct ggml_context *weights_context, *context;
    ggml_backend_buffer_t weights_buffer, buffer;
    struct ggml_tensor *weights, *input;
    struct ggml_cgraph *graph;
};

static void product_release(struct product *p)
{
    ggml_backend_buffer_free(p->weights_buffer);
    ggml_backend_buffer_free(p->buffer);
    ggml_free(p->weights_context);
    ggml_free(p->context);
}

/* libllama's choice (src/llama-model-loader.cpp): the first of the CPU's extra buffer types whose kernels
 * take the product, else the plain one. */
static ggml_backend_buffer_type_t buffer_type(struct product *p)
{
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_dev_get_extra_bufts_t list =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t *types = list ? list(device) : NULL;
    for (; types && *types; types++) {
        p->weights->buffer = ggml_backend_buft_alloc_buffer(*types, 0);
        const bool takes =
            p->weights->buffer && ggml_backend_dev_supports_op(device, ggml_graph_node(p->graph, 0));
        ggml_backend_buffer_free(p->weights->buffer);
        p->weights->buffer = NULL;
        if (takes)
            return *types;
    }
    return ggml_backend_cpu_buffer_type();
}

static allot_status build(struct product *p, enum ggml_type type, int64_t width, int64_t n_rows,
                          struct allot_error *err)
{
    const struct ggml_init_params params = {
        .mem_size = N_OBJECTS * ggml_tensor_overhead() + ggml_graph_overhead(), .no_alloc = true};
    p->weights_context = ggml_init(params);
    p->context = ggml_init(params);
    if (!p->weights_context || !p->context)
        return allot_fail_memory(err, params.mem_size, "a graph");
    p->weights = ggml_new_tensor_2d(p->weights_context, type, width, n_rows);
    p->input = ggml_new_tensor_1d(p->context, GGML_TYPE_F32, width);
    p->graph = ggml_new_graph(p->context);
    ggml_build_forward_expand(p->graph, ggml_mul_mat(p->context, p->weights, p->input));
    p->weights_buffer = ggml_backend_alloc_ctx_tensors_from_buft(p->weights_context, buffer_type(p));
    p->buffer = ggml_backend_alloc_ctx_tensors_from_buft(p->context, ggml_backend_cpu_buffer_type());
    if (!p->weights_buffer || !p->buffer)
        return allot_fail_memory(err, ggml_nbytes(p->weights), "a matrix");
    return ALLOT_OK;
}

static void repeat(uint8_t *to, const struct speed_kind *kind, size_t bytes, size_t total)
{
    for (size_t at = 0; at < total; at += bytes)
        memcpy(to + at, kind->rows, bytes);
}

/* Rearranging buffers want the whole tensor at once, from elsewhere. */
static allot_status fill(struct product *p, const struct speed_kind *kind, struct allot_error *err)
{
    const size_t total = ggml_nbytes(p->weights), bytes = (size_t)kind->n_rows * p->weights->nb[1];
    float *input = p->input->data;
    for (int64_t i = 0; i < p->input->ne[0]; i++)
        input[i] = (float)rng_normal(1, (uint64_t)i);
    if (ggml_backend_buffer_is_host(p->weights_buffer)) {
        repeat(p->weights->data, kind, bytes, total);
        return ALLOT_OK;
    }
    uint8_t *plain = malloc(total);
    if (!plain)
        return allot_fail_memory(err, total, "a matrix");
    repeat(plain, kind, bytes, total);
    ggml_backend_tensor_set(p->weights, plain, 0, total);
    free(plain);
    return ALLOT_OK;
}

/* The first run touches everything and does not count. */
static allot_status shortest_run(double *seconds, struct product *p, ggml_backend_t backend, double duration,
                                 struct allot_error *err)
{
    double start = 0, sum = 0;
    *seconds = INFINITY;
    for (int run = 0; run <= LEAST_RUNS || (sum < duration && run <= MOST_RUNS); run++) {
        start = seconds_now();
        text_forget_llama_error();
        if (ggml_backend_graph_compute(backend, p->graph) != GGML_STATUS_SUCCESS)
            return allot_fail(err, ALLOT_ERR_INTERNAL, "ggml failed to multiply a %s matrix: %s",
                              ggml_type_name(p->weights->type), text_last_llama_error());
        const double took = seconds_now() - start;
        if (run > 0) {
            sum += took;
            *seconds = fmin(*seconds, took);
        }
    }
    return ALLOT_OK;
}

static allot_status measure(struct speed_kind *kind, ggml_backend_t backend,
                            const struct speed_options *options, struct allot_error *err)
{
    const int64_t part = kind->n_rows * (int64_t)ggml_row_size(kind->type, options->width),
                  bytes = options->bytes > 0 ? options->bytes : speed_default_bytes();
    struct product p = {0};
    double seconds;
    allot_status status = build(&p, kind->type, options->width, parts_of(bytes, part) * kind->n_rows, err);
    if (status == ALLOT_OK)
        status = fill(&p, kind, err);
    if (status == ALLOT_OK)
        status = shortest_run(&seconds, &p, backend, options->duration, err);
    if (status == ALLOT_OK) /* a clock that did not move is no speed */
        kind->ns_per_byte = 1e9 * fmax(seconds, 1e-9) / (double)ggml_nbytes(p.weights);
    product_release(&p);
    return status;
}

allot_status speed_measure(struct speed_kind *kinds, size_t n, const struct speed_options *options,
                           const struct allot_progress *progress, struct allot_error *err)
{
    text_capture_llama_log();
    ggml_backend_t backend = ggml_backend_cpu_init();
    allot_status status = backend ? ALLOT_OK : allot_fail_memory(err, MIB, "ggml's CPU backend");
    if (backend)
        ggml_backend_cpu_set_n_threads(backend, options->n_threads);
    for (size_t i = 0; status == ALLOT_OK && i < n; i++) {
        status = allot_report(progress, err, "speed", (int64_t)i, (int64_t)n);
        if (status == ALLOT_OK)
            status = measure(&kinds[i], backend, options, err);
    }
    if (status == ALLOT_OK)
        status = allot_report(progress, err, "speed", (int64_t)n, (int64_t)n);
    if (backend)
        ggml_backend_free(backend);
    return status;
}
