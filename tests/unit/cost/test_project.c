/* test_project.c - projections of linear maps against plain loops, for every kernel of this processor.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cost/project.h"
#include "gguf/convert.h"
#include "quant/quant.h"

static struct allot_error err;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* One map: the matrix `expert` of a stack, of which the call brings rows [first, first + rows). */
struct map_case {
    const char *what;
    int64_t n_in, ne1, n_experts, expert, first, rows;
    int64_t n_positions; /* in the batch */
    int32_t chunk;
    double routed; /* share of the positions in the call, by the luck of the draw; 1: tokens is NULL */
    size_t n_types;
    bool weights;
};

static const struct map_case cases[] = {
    {"one type", 64, 24, 1, 0, 0, 24, 64, 16, 1, 1, true},
    {"no importances", 64, 24, 1, 0, 0, 24, 64, 16, 1, 5, false},
    {"rows and columns that fill no tile", 96, 29, 1, 0, 0, 29, 80, 16, 1, 7, true},
    {"a row range", 32, 50, 1, 0, 13, 31, 48, 8, 1, 3, true},
    {"chunks of one token", 64, 12, 1, 0, 0, 12, 100, 1, 1, 4, true},
    {"chunks of a prime", 64, 12, 1, 0, 0, 12, 91, 13, 1, 4, true},
    {"chunks longer than a group", 32, 7, 1, 0, 0, 7, 4800, 2400, 1, 2, true},
    {"several groups of tokens", 32, 14, 1, 0, 0, 14, 3008, 16, 1, 2, true},
    {"several blocks of rows", 4096, 150, 1, 0, 0, 150, 32, 16, 1, 2, true},
    {"an expert", 64, 20, 4, 2, 40, 20, 320, 16, 0.3, 6, true},
    {"the last expert, few tokens", 256, 20, 4, 3, 60, 20, 640, 16, 0.02, 25, true},
    {"an expert without importances", 64, 20, 3, 1, 20, 20, 320, 16, 0.5, 3, false},
    {"an expert with many runs", 32, 8, 2, 1, 8, 8, 4000, 4, 0.4, 3, true},
    {"all types", 256, 13, 1, 0, 0, 13, 64, 16, 1, 25, true},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static float *random_floats(uint64_t seed, int64_t n)
{
    float *x = malloc(sizeof *x * (size_t)n);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rng_normal(seed, (uint64_t)i);
    return x;
}

struct world {
    const struct map_case *c;
    struct gguf_tensor tensor;
    enum ggml_type types[32];
    size_t n_types;
    float *w, *x, *g, *weights;
    int32_t *tokens;
    struct net_map map;
    int64_t n_chunks;
};

static void world_init(struct world *o, const struct map_case *c)
{
    static char name[] = "blk.0.test.weight";
    size_t n_all;
    const struct quant_type *all = quant_types(&n_all);
    *o = (struct world){.c = c, .n_chunks = c->n_positions / c->chunk};
    o->tensor.name = name;
    memcpy(o->tensor.ne, (int64_t[]){c->n_in, c->ne1, c->n_experts, 1}, sizeof o->tensor.ne);
    for (size_t i = 0; i < n_all && o->n_types < c->n_types; i++)
        if (quant_type_fits(all[i].type, c->n_in) && (c->weights || !all[i].aborts_without))
            o->types[o->n_types++] = all[i].type;
    o->tokens = malloc(sizeof *o->tokens * (size_t)c->n_positions);
    int64_t n = 0;
    for (int64_t t = 0; t < c->n_positions; t++)
        if (rng_uniform(4, (uint64_t)t) < c->routed)
            o->tokens[n++] = (int32_t)t;
    o->w = random_floats(1, c->rows * c->n_in);
    o->x = random_floats(2, n * c->n_in);
    o->g = random_floats(3, n * c->rows);
    o->weights = random_floats(5, c->n_experts * c->n_in);
    for (int64_t i = 0; i < c->n_experts * c->n_in; i++)
        o->weights[i] = o->weights[i] * o->weights[i] + 0.01f;
    o->map = (struct net_map){.tensor = &o->tensor,
                              .first_row = c->first,
                              .n_rows = c->rows,
                              .n_in = c->n_in,
                              .n_tokens = n,
                              .tokens = c->routed < 1 ? o->tokens : NULL,
                              .w = o->w,
                              .x = o->x,
                              .g = o->g};
}

static void world_release(struct world *o)
{
    free(o->w);
    free(o->x);
    free(o->g);
    free(o->weights);
    free(o->tokens);
}

/* ---- A rounding that shows: every other type holds the weights with the other sign ----------------------
 */

static bool rounded; /* is it used? */

static bool is_rounded(enum ggml_type type)
{
    return rounded && type % 2 == 0 && !quant_type_find(type)->aborts_without;
}

static allot_status negate_begin(void *user, const struct gguf_tensor *tensor, enum ggml_type type,
                                 bool *wanted, struct allot_error *e)
{
    (void)user, (void)tensor, (void)e;
    *wanted = is_rounded(type);
    return ALLOT_OK;
}

static allot_status negate_rows(void *user, const struct gguf_tensor *tensor, enum ggml_type type,
                                int64_t row, int64_t n_rows, const float *src, void *bytes,
                                struct allot_error *e)
{
    const int64_t n = n_rows * tensor->ne[0];
    float *negative = malloc(sizeof *negative * (size_t)n);
    (void)user, (void)e, (void)row;
    for (int64_t i = 0; i < n; i++)
        negative[i] = -src[i];
    const enum quant_result result = quant_rows(type, negative, bytes, n_rows, tensor->ne[0], NULL);
    free(negative);
    return result == QUANT_INFEASIBLE ? ALLOT_ERR_NUMERIC : ALLOT_OK;
}

static const struct quantize_rounding negate = {NULL, 0, negate_begin, negate_rows};

/* The sums of n_types types from types[first] on, by one kernel and so many threads. */
static struct projection *project(const struct world *o, const struct chunk_kernel *kernel, int n_threads,
                                  size_t first, size_t n_types)
{
    struct pool *pool;
    struct projector projector;
    struct projection *p;
    size_t bytes = sizeof(float) * (size_t)(o->c->n_experts * o->c->n_in);
    float *weights = o->c->weights ? memcpy(malloc(bytes), o->weights, bytes) : NULL;
    check(pool_new(&pool, n_threads, &err));
    projector_init(&projector, pool, o->c->chunk, o->n_chunks);
    projector.kernel = kernel;
    projector.rounding = rounded ? &negate : NULL;
    check(projection_new(&p, &o->tensor, o->types + first, n_types, weights, o->n_chunks, &err));
    check(projection_add_map(p, &projector, &o->map, &err));
    projector_release(&projector);
    pool_free(pool);
    return p;
}

/* u and the sizes of its terms, (n_chunks, n_types), in double. */
static void plain_loops(const struct world *o, double *u, double *size)
{
    const struct map_case *c = o->c;
    float *error = malloc(sizeof *error * (size_t)c->n_in);
    uint8_t *bytes = malloc(4 * (size_t)c->n_in);
    const float *weights = c->weights ? o->weights + c->expert * c->n_in : NULL;
    for (size_t j = 0; j < o->n_types; j++) {
        for (int64_t r = 0; r < c->rows; r++) {
            const float *w = o->w + r * c->n_in;
            const enum ggml_type type = o->types[j];
            assert_int_not_equal(quant_rows(type, w, bytes, 1, c->n_in, weights), QUANT_INFEASIBLE);
            if (is_rounded(type))
                check(negate_rows(NULL, &o->tensor, type, c->first + r, 1, w, bytes, &err));
            assert_true(gguf_to_f32(o->types[j], bytes, error, c->n_in));
            for (int64_t i = 0; i < c->n_in; i++)
                error[i] -= w[i];
            for (int64_t t = 0; t < o->map.n_tokens; t++) {
                int64_t position = c->routed < 1 ? o->tokens[t] : t;
                size_t at = (size_t)(position / c->chunk) * o->n_types + j;
                double sum = 0, g = o->g[t * c->rows + r];
                for (int64_t i = 0; i < c->n_in; i++)
                    sum += (double)o->x[t * c->n_in + i] * error[i];
                u[at] += g * sum;
                size[at] += g * g * sum * sum;
            }
        }
    }
    free(error);
    free(bytes);
}

static void compare_with_plain_loops(void)
{
    int n_kernels;
    const struct chunk_kernel *kernels = chunk_kernels(&n_kernels);
    for (size_t i = 0; i < N_CASES; i++) {
        struct world o;
        world_init(&o, &cases[i]);
        assert_int_equal(o.n_types, cases[i].n_types);
        size_t n = (size_t)o.n_chunks * o.n_types;
        double *u = calloc(n, sizeof *u), *size = calloc(n, sizeof *size);
        plain_loops(&o, u, size);
        for (int k = 0; k < n_kernels; k++) {
            struct projection *p = project(&o, &kernels[k], 2, 0, o.n_types);
            double worst = 0;
            int64_t empty = 0;
            for (size_t at = 0; at < n; at++) {
                double error = fabs(p->u[at] - u[at]) / (sqrt(size[at]) + 1e-30);
                assert_true(isfinite(error));
                worst = error > worst ? error : worst;
                empty += size[at] == 0;
            }
            print_message("%s, %s: worst error %.1e of the terms' size, %d sums without tokens\n",
                          cases[i].what, kernels[k].name, worst, (int)empty);
            assert_true(worst < 5e-6);
            for (int64_t e = 0; e < cases[i].n_experts; e++)
                assert_int_equal(p->seen[e], e == cases[i].expert);
            projection_free(p);
        }
        free(u);
        free(size);
        world_release(&o);
    }
}

static void test_plain_loops(void **state)
{
    (void)state;
    compare_with_plain_loops();
}

static void test_rounded(void **state)
{
    (void)state;
    rounded = true;
    compare_with_plain_loops();
    rounded = false;
}

/* Bits depend neither on the threads nor on the company of other types. */
static void test_same_bits(void **state)
{
    (void)state;
    int n_kernels;
    const struct chunk_kernel *kernels = chunk_kernels(&n_kernels);
    for (size_t i = 0; i < N_CASES; i++) {
        struct world o;
        world_init(&o, &cases[i]);
        for (int k = 0; k < n_kernels; k++) {
            struct projection *one = project(&o, &kernels[k], 1, 0, o.n_types);
            struct projection *three = project(&o, &kernels[k], 3, 0, o.n_types);
            struct projection *last = project(&o, &kernels[k], 2, o.n_types - 1, 1);
            assert_memory_equal(one->u, three->u, sizeof(double) * (size_t)o.n_chunks * o.n_types);
            for (int64_t c = 0; c < o.n_chunks; c++)
                assert_memory_equal(&last->u[c], &one->u[(size_t)(c + 1) * o.n_types - 1], sizeof(double));
            projection_free(one);
            projection_free(three);
            projection_free(last);
        }
        world_release(&o);
    }
}

/* Two calls of one projector add up, whatever the first left in the buffers. */
static void test_experts_add_up(void **state)
{
    (void)state;
    struct world few, many;
    struct pool *pool;
    struct projector projector;
    struct projection *p;
    world_init(&few, &cases[10]);
    struct map_case other = cases[10];
    other.expert = 0;
    other.first = 0;
    other.routed = 0.6;
    world_init(&many, &other);
    check(pool_new(&pool, 2, &err));
    projector_init(&projector, pool, other.chunk, few.n_chunks);
    float *weights = malloc(sizeof(float) * (size_t)(other.n_experts * other.n_in));
    memcpy(weights, few.weights, sizeof(float) * (size_t)(other.n_experts * other.n_in));
    check(projection_new(&p, &few.tensor, few.types, few.n_types, weights, few.n_chunks, &err));
    check(projection_add_map(p, &projector, &many.map, &err));
    check(projection_add_map(p, &projector, &few.map, &err));
    struct projection *a = project(&many, projector.kernel, 1, 0, many.n_types);
    struct projection *b = project(&few, projector.kernel, 1, 0, few.n_types);
    for (size_t i = 0; i < (size_t)few.n_chunks * few.n_types; i++)
        assert_true(fabs(p->u[i] - (a->u[i] + b->u[i])) <= 1e-12 * (fabs(a->u[i]) + fabs(b->u[i])));
    assert_true(p->seen[0] && !p->seen[1] && !p->seen[2] && p->seen[3]);
    projection_free(a);
    projection_free(b);
    projection_free(p);
    projector_release(&projector);
    pool_free(pool);
    world_release(&few);
    world_release(&many);
}

/* Rows that no token passed through: large values rule out the types that cannot hold them, and no others. */
static void test_rows_without_tokens(void **state)
{
    (void)state;
    enum { N_IN = 256, N_ROWS = 200, N_TYPES = 3 };
    static const enum ggml_type types[N_TYPES] = {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_BF16};
    static const struct {
        float value;
        bool infeasible[N_TYPES];
        allot_status status;
    } rows[] = {{0.5f, {false, false, false}, ALLOT_OK},
                {2000.0f, {false, false, false}, ALLOT_OK},
                {1e30f, {true, true, false}, ALLOT_OK},
                {NAN, {false, false, false}, ALLOT_ERR_NUMERIC}};
    struct gguf_model model = {.path = (char *)(uintptr_t) "model"};
    size_t bytes = sizeof(float) * N_IN * N_ROWS;
    float *w = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    struct gguf_tensor t = {.name = (char *)(uintptr_t) "t",
                            .n_dims = 2,
                            .ne = {N_IN, N_ROWS, 1, 1},
                            .type = GGML_TYPE_F32,
                            .n_elements = N_IN * N_ROWS,
                            .n_rows = N_ROWS,
                            .row_bytes = 4 * N_IN};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct projection *p;
        struct projector projector;
        struct pool *pool;
        for (int k = 0; k < N_IN * N_ROWS; k++)
            w[k] = (float)rng_normal(9, (uint64_t)k);
        w[N_IN * 131 + 7] = rows[i].value;
        t.data = (const uint8_t *)w;
        check(pool_new(&pool, 2, &err));
        projector_init(&projector, pool, 16, 1);
        check(projection_new(&p, &t, types, N_TYPES, NULL, 1, &err));
        assert_int_equal(projection_try_rows(p, &projector, &model, &err), rows[i].status);
        for (int j = 0; j < N_TYPES; j++)
            assert_int_equal(p->infeasible[j], rows[i].infeasible[j]);
        projection_free(p);
        projector_release(&projector);
        pool_free(pool);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_loops),    cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_same_bits),      cmocka_unit_test(test_rows_without_tokens),
        cmocka_unit_test(test_experts_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
