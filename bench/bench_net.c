/* bench_net.c - the rate of the passes through the network over sgemm's.  SPDX-License-Identifier: MIT
 *
 * usage: bench-net [WIDTH,...|MODEL [SEQUENCES LENGTH [THREADS]]]
 *
 * Widths 576, 2048 and 4096 stand for random llamas of two layers or one, with the heads and feed-forward
 * width of real ones. The rate of sgemm (large square products on all threads) is measured before and after
 * every run of a part, so that both see the same machine; of several runs the median counts. What counts as
 * useful: 2 flops per weight and token forward, 2 backward and 2 for the gradient, and attention's products
 * of the keys that a query sees; neither recomputation nor the products of gradients and errors, but for the
 * line that says so. Quantizing is left out of every time.
 */
#include <cblas.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "cost/fisher.h"
#include "cost/project.h"
#include "gguf/convert.h"
#include "base/gemm.h"
#include "net/ops.h"

enum { GEMM_SIZE = 1536, GEMM_REPEATS = 8, CHUNK = FISHER_DEFAULT_CHUNK, MANY_TYPES = 21, REPEATS = 3 };

static struct allot_error err;

static void check(allot_status status)
{
    if (status == ALLOT_OK)
        return;
    fprintf(stderr, "bench-net: %s\n", err.message);
    exit(1);
}

static float *floats(int64_t n)
{
    float *x = aligned_alloc(64, sizeof *x * (size_t)((n + 15) / 16 * 16));
    if (x == NULL) {
        fprintf(stderr, "bench-net: no memory for %" PRId64 " floats\n", n);
        exit(1);
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i % 7 - 3) * 0.1f;
    return x;
}

/* ---- The model at work -------------------------------------------------------------------------------- */

struct bench {
    struct gguf_model *model;
    struct net net;
    struct pool *pool;
    struct net_batch batch;
    int64_t n;                     /* tokens */
    double layer_weights, weights; /* in products, per token; with the output's */
    double attention;              /* flops forward: what a query sees of keys and values */
    float *square;                 /* operands of sgemm_rate */
    struct net_tape tape;
    float *x, *a, *b, *c, *d; /* the latter for single operations, the largest activation each */
    struct net_targets targets;
};

static void one_gemm(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct bench *b = user;
    int64_t size = GEMM_SIZE * GEMM_SIZE;
    const float *a = b->square + item * 3 * size;
    gemm_strided(false, true, GEMM_SIZE, GEMM_SIZE, GEMM_SIZE, 1, a, GEMM_SIZE, a + size, GEMM_SIZE, 0,
                 b->square + (item * 3 + 2) * size, GEMM_SIZE);
}

/* Flops per second of some products in a row. */
static double sgemm_rate(const struct bench *b)
{
    int n_threads = pool_threads(b->pool);
    double start = seconds_now();
    for (int i = 0; i < GEMM_REPEATS; i++)
        pool_run(b->pool, n_threads, one_gemm, (void *)(uintptr_t)b);
    return 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE * n_threads * GEMM_REPEATS / (seconds_now() - start);
}

static void bench_init(struct bench *b, const char *path, int64_t n_seqs, int64_t n_ctx, int n_threads)
{
    *b = (struct bench){0};
    check(gemm_init(&err));
    check(gguf_model_open(&b->model, path, &err));
    check(net_open(&b->net, b->model, &err));
    check(pool_new(&b->pool, n_threads, &err));
    const struct net *net = &b->net;
    int64_t q = net->n_heads * net->head_dim, widest = net->n_ff > q ? net->n_ff : q;
    for (int64_t i = 0; i < b->model->n_tensors; i++) {
        const struct gguf_tensor *t = &b->model->tensors[i];
        double used = t->ne[2] > 1 ? (double)net->n_experts_used / (double)t->ne[2] : 1;
        if (gguf_tensor_quantizable(t) && t->layer >= 0)
            b->layer_weights += (double)t->n_elements * used;
    }
    b->weights = b->layer_weights + (double)net->output->n_elements;
    b->n = n_seqs * n_ctx;
    b->attention = 2.0 * (double)(b->n * (n_ctx + 1) * q * net->n_layers);
    int32_t *ids = malloc(sizeof *ids * (size_t)b->n);
    for (int64_t i = 0; i < b->n; i++)
        ids[i] = (int32_t)(rng_u64(2, (uint64_t)i) % (uint64_t)net->n_vocab);
    b->batch = (struct net_batch){ids, n_seqs, n_ctx};
    b->square = floats((int64_t)pool_threads(b->pool) * 3 * GEMM_SIZE * GEMM_SIZE);
    b->x = floats(b->n * net->n_embd);
    check(net_tape_init(&b->tape, net, b->n, NULL, &err));
    b->a = floats(b->n * widest);
    b->b = floats(b->n * widest);
    b->c = floats(b->n * widest);
    b->d = floats(b->n * widest);
}

static void bench_release(struct bench *b)
{
    float *buffers[] = {b->square, b->x, b->a, b->b, b->c, b->d};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free((void *)(uintptr_t)b->batch.ids);
    net_targets_release(&b->targets);
    net_tape_release(&b->tape);
    pool_free(b->pool);
    net_release(&b->net);
    gguf_model_close(b->model);
}

/* ---- Projections without the time of quantizing ---------------------------------------------------------
 */

struct watcher {
    struct projector projector;
    struct projection *projection;
    size_t n_types;
};

static allot_status watch_map(void *user, const struct net_map *map, struct allot_error *error)
{
    struct watcher *w = user;
    enum ggml_type types[MANY_TYPES];
    for (int i = 0; i < MANY_TYPES; i++)
        types[i] = GGML_TYPE_F16; /* quick to quantize, and as quick to multiply with as any */
    allot_status status = ALLOT_OK;
    if (w->projection == NULL)
        status = projection_new(&w->projection, map->tensor, types, w->n_types, NULL, w->projector.n_chunks,
                                error);
    return status == ALLOT_OK ? projection_add_map(w->projection, &w->projector, map, error) : status;
}

static allot_status watch_done(void *user, const struct gguf_tensor *tensor, struct allot_error *error)
{
    struct watcher *w = user;
    (void)tensor;
    (void)error;
    projection_free(w->projection);
    w->projection = NULL;
    return ALLOT_OK;
}

/* ---- Parts ------------------------------------------------------------------------------------------------
 */

/* A part returns its seconds. */
typedef double part_run(struct bench *b);

static double run_forward(struct bench *b)
{
    double start = seconds_now();
    check(net_forward(&b->net, b->pool, &b->batch, b->x, &b->tape, b->n, NULL, NULL, &err));
    return seconds_now() - start;
}

static double run_labels(struct bench *b)
{
    net_targets_release(&b->targets);
    double start = seconds_now();
    check(net_targets_draw(&b->targets, &b->net, b->pool, b->x, b->n, 1, &err));
    return seconds_now() - start;
}

/* Backward with so many types (0: no observer): seconds without quantizing; *product: of gradients and sums.
 */
static double backward_with(struct bench *b, size_t n_types, double *product)
{
    struct watcher w = {.n_types = n_types};
    struct net_observer observer = {.user = &w, .map = watch_map, .done = watch_done};
    projector_init(&w.projector, b->pool, CHUNK, b->n / CHUNK);
    run_forward(b); /* fills the tape */
    double start = seconds_now();
    check(net_backward(&b->net, b->pool, &b->batch, b->x, &b->tape, &b->targets,
                       n_types > 0 ? &observer : NULL, NULL, &err));
    double seconds = seconds_now() - start - w.projector.seconds_quantize;
    *product = w.projector.seconds_product;
    projector_release(&w.projector);
    return seconds;
}

static double run_backward(struct bench *b)
{
    double product;
    return backward_with(b, 0, &product);
}

static double run_gradients(struct bench *b)
{
    double product;
    backward_with(b, 1, &product);
    return product;
}

static double run_sums(struct bench *b)
{
    double product;
    backward_with(b, MANY_TYPES, &product);
    return product;
}

static double run_pass(struct bench *b, size_t n_types)
{
    double product, seconds = run_forward(b) + run_labels(b);
    return seconds + backward_with(b, n_types, &product);
}

static double run_pass_one(struct bench *b)
{
    return run_pass(b, 1);
}

static double run_pass_many(struct bench *b)
{
    return run_pass(b, MANY_TYPES);
}

static struct attention attention_of(const struct bench *b, float *scratch)
{
    const struct net *net = &b->net;
    return (struct attention){.n_seqs = b->batch.n_seqs,
                              .n_ctx = b->batch.n_ctx,
                              .n_heads = net->n_heads,
                              .n_kv_heads = net->n_kv_heads,
                              .head_dim = net->head_dim,
                              .scale = net->attn_scale,
                              .scratch = scratch};
}

static double run_attention(struct bench *b)
{
    float *scratch = floats(attention_scratch(b->batch.n_ctx, false, pool_threads(b->pool)));
    struct attention a = attention_of(b, scratch);
    double start = seconds_now();
    for (int64_t il = 0; il < b->net.n_layers; il++)
        attention_forward(b->pool, b->d, b->a, b->b, b->c, &a);
    double seconds = seconds_now() - start;
    free(scratch);
    return seconds;
}

static double run_attention_backward(struct bench *b)
{
    float *scratch = floats(attention_scratch(b->batch.n_ctx, false, pool_threads(b->pool)));
    float *dk = floats(b->n * b->net.n_kv_heads * b->net.head_dim);
    float *dv = floats(b->n * b->net.n_kv_heads * b->net.head_dim);
    struct attention a = attention_of(b, scratch);
    double start = seconds_now();
    for (int64_t il = 0; il < b->net.n_layers; il++)
        attention_backward(b->pool, b->d, dk, dv, b->x, b->a, b->b, b->c, &a);
    double seconds = seconds_now() - start;
    free(scratch);
    free(dk);
    free(dv);
    return seconds;
}

/* What a layer's way forward and back asks for. */
static double run_norms(struct bench *b)
{
    const struct net *net = &b->net;
    float *inv_rms = floats(b->n);
    double start = seconds_now();
    for (int64_t i = 0; i < 2 * net->n_layers; i++) {
        rms_norm_forward(b->pool, b->b, inv_rms, b->a, b->x, b->n, net->n_embd, net->rms_eps);
        rms_norm_backward(b->pool, b->d, NULL, b->c, b->a, b->x, inv_rms, b->n, net->n_embd);
    }
    double seconds = seconds_now() - start;
    free(inv_rms);
    return seconds;
}

static double run_rope(struct bench *b)
{
    const struct net *net = &b->net;
    struct rope_options options = {
        .n_rot = net->n_rot, .base = net->ropes[0].base, .scale = net->ropes[0].scale, .magnitude = 1};
    struct rope_table table;
    check(rope_table_init(&table, b->batch.n_ctx, &options, &err));
    double start = seconds_now();
    for (int64_t i = 0; i < net->n_layers; i++) {
        rope_forward(b->pool, b->a, &table, b->n, net->n_heads, net->head_dim);
        rope_forward(b->pool, b->b, &table, b->n, net->n_kv_heads, net->head_dim);
        rope_backward(b->pool, b->a, &table, b->n, net->n_heads, net->head_dim);
        rope_backward(b->pool, b->b, &table, b->n, net->n_kv_heads, net->head_dim);
    }
    double seconds = seconds_now() - start;
    rope_table_release(&table);
    return seconds;
}

static double run_gate(struct bench *b)
{
    int64_t n = b->n * b->net.n_ff;
    double start = seconds_now();
    for (int64_t i = 0; i < b->net.n_layers; i++) {
        gate_forward(b->pool, GATE_SILU, b->c, b->a, b->b, n);
        gate_backward(b->pool, GATE_SILU, b->d, b->c, b->c, b->a, b->b, n);
    }
    return seconds_now() - start;
}

/* All layers once; the passes do it twice. */
static double run_weights(struct bench *b)
{
    double seconds = 0;
    for (int64_t i = 0; i < b->model->n_tensors; i++) {
        const struct gguf_tensor *t = &b->model->tensors[i];
        if (t->layer < 0)
            continue;
        float *w = floats(t->n_elements);
        double start = seconds_now();
        check(gguf_tensor_to_f32(b->model, t, 0, t->n_rows, w, b->pool, &err));
        seconds += seconds_now() - start;
        free(w);
    }
    return seconds;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

/* One run of a part, and the rate of sgemm around it. */
struct timing {
    double seconds, sgemm;
};

static int compare_timings(const void *x, const void *y)
{
    const struct timing *a = x, *b = y;
    double p = a->seconds * a->sgemm, q = b->seconds * b->sgemm;
    return (p > q) - (p < q);
}

/* The run in the middle, by its time in units of sgemm's. */
static struct timing time_part(struct bench *b, part_run *run)
{
    struct timing timings[REPEATS];
    double before = sgemm_rate(b);
    for (int i = 0; i < REPEATS; i++) {
        timings[i].seconds = run(b);
        double after = sgemm_rate(b);
        timings[i].sgemm = 0.5 * (before + after);
        before = after;
    }
    qsort(timings, REPEATS, sizeof *timings, compare_timings);
    return timings[REPEATS / 2];
}

static void bench_model(const char *path, int64_t n_seqs, int64_t n_ctx, int n_threads)
{
    struct bench b;
    bench_init(&b, path, n_seqs, n_ctx, n_threads);
    double n = (double)b.n, output = b.weights - b.layer_weights;
    struct {
        const char *name;
        part_run *run;
        double flops; /* 0: not a matter of flops */
        struct timing timing;
    } parts[] = {
        {"forward", run_forward, 2 * n * b.layer_weights + b.attention, {0, 0}},
        {"labels", run_labels, 2 * n * output, {0, 0}},
        {"backward", run_backward, 2 * n * b.weights + 2 * b.attention, {0, 0}},
        {"gradients, 1 type", run_gradients, 2 * n * b.weights, {0, 0}},
        {"gradients and sums, 21 types",
         run_sums,
         2 * n * b.weights * (1 + MANY_TYPES / (double)CHUNK),
         {0, 0}},
        {"  attention forward", run_attention, b.attention, {0, 0}},
        {"  attention backward", run_attention_backward, 2 * b.attention, {0, 0}},
        {"  norms", run_norms, 0, {0, 0}},
        {"  rope", run_rope, 0, {0, 0}},
        {"  gates", run_gate, 0, {0, 0}},
        {"  weights to F32, once", run_weights, 0, {0, 0}},
        {"pass with 21 types",
         run_pass_many,
         n * b.weights * (6 + 2 * MANY_TYPES / (double)CHUNK) + 3 * b.attention,
         {0, 0}},
        {"pass", run_pass_one, 6 * n * b.weights + 3 * b.attention, {0, 0}},
    };
    size_t n_parts = sizeof parts / sizeof *parts;
    for (size_t i = 0; i < n_parts; i++)
        parts[i].timing = time_part(&b, parts[i].run);
    printf("width %" PRId64 ": %" PRId64 " layers, %.1fM weights in products, %" PRId64 " x %" PRId64
           " tokens, %d threads, OpenBLAS %s\n",
           b.net.n_embd, b.net.n_layers, b.weights / 1e6, n_seqs, n_ctx, pool_threads(b.pool),
           openblas_get_corename());
    printf("%-30s %8s %19s %22s\n", "", "", "", "sgemm around it");
    for (size_t i = 0; i < n_parts; i++) {
        double seconds = parts[i].timing.seconds, sgemm = parts[i].timing.sgemm;
        printf("%-30s %6.3f s", parts[i].name, seconds);
        if (parts[i].flops > 0)
            printf(" %9.1f GFLOP/s %9.1f GFLOP/s %5.1f %%", parts[i].flops / seconds / 1e9, sgemm / 1e9,
                   100 * parts[i].flops / seconds / sgemm);
        printf("\n");
    }
    printf("\n");
    bench_release(&b);
}

/* ---- Random models ------------------------------------------------------------------------------------- */

static const struct shape {
    int width, layers, ff, vocab, heads, kv_heads, n_seqs;
} shapes[] = {
    {576, 2, 1536, 4096, 9, 3, 64}, {2048, 2, 5632, 2048, 32, 8, 16}, {4096, 1, 14336, 2048, 32, 8, 8}};

static void bench_shape(int width)
{
    char folder[] = "/tmp/allot-bench-XXXXXX", path[64], self[512] = "", command[1024];
    const struct shape *s = shapes;
    while (s < shapes + sizeof shapes / sizeof *shapes && s->width != width)
        s++;
    if (s == shapes + sizeof shapes / sizeof *shapes) {
        fprintf(stderr, "bench-net: widths are 576, 2048 and 4096\n");
        exit(2);
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || mkdtemp(folder) == NULL)
        exit(1);
    *strrchr(self, '/') = '\0';
    snprintf(path, sizeof path, "%s/random.gguf", folder);
    snprintf(command, sizeof command, "'%s/tools/make-synthetic' %s %d %d %d %d %d %d 1", self, path,
             s->layers, s->width, s->ff, s->vocab, s->heads, s->kv_heads);
    if (system(command) == 0)
        bench_model(path, s->n_seqs, 128, 0);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strspn(argv[1], "0123456789,") != strlen(argv[1])) {
        bench_model(argv[1], argc > 3 ? atoi(argv[2]) : 32, argc > 3 ? atoi(argv[3]) : 128,
                    argc > 4 ? atoi(argv[4]) : 0);
        return 0;
    }
    char widths[256];
    snprintf(widths, sizeof widths, "%s", argc > 1 ? argv[1] : "576,2048");
    for (char *word = strtok(widths, ","); word != NULL; word = strtok(NULL, ","))
        bench_shape(atoi(word));
    return 0;
}
