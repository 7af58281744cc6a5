/* gradient.h - gradients of all tensors, and central differences to hold them to.
 * SPDX-License-Identifier: MIT
 *
 * The likelihood of fixed labels is summed in double; a tensor, or one matrix of a stack, is moved along its
 * own gradient, every component scaled by a random factor, so that a wrong component shows. */
#ifndef TESTS_NET_GRADIENT_H
#define TESTS_NET_GRADIENT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/rng.h"
#include "gguf/convert.h"
#include "net/layer.h"

/* A model whose tensors can be changed: each is a float32 copy. */
struct bench {
    struct gguf_model *model;
    struct net net;
    struct pool *pool;
    float **data; /* [n_tensors] */
    int32_t *ids;
    int64_t n_seqs, n_ctx, n;
    float *x;
    struct net_tape tape;
    struct net_targets targets;
    const float *taught; /* (n_taught, n_vocab): log-probabilities of the teacher of the first tokens */
    int64_t n_taught;
    double **gradients;           /* [n_tensors] */
    struct net_observer observer; /* of the passes that give gradients */
    double move;                  /* nats, summed over all positions, that a central difference goes */
    double worst;                 /* relative difference so far */
    int n_checked, n_without;     /* slices compared; slices on which the likelihood does not depend */
    int n_wrong;                  /* of both */
    uint64_t routing; /* fingerprint of how many tokens each expert took in the last forward pass */
};

static struct allot_error err;

static inline void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

static inline size_t data_bytes(const struct gguf_tensor *t)
{
    return sizeof(float) * (size_t)t->n_elements;
}

/* ---- What a backward pass gives ---------------------------------------------------------------------- */

static inline double *gradient_of(struct bench *b, const struct gguf_tensor *t)
{
    double **g = &b->gradients[t - b->model->tensors];
    if (*g == NULL)
        *g = calloc((size_t)t->n_elements, sizeof **g);
    return *g;
}

static inline allot_status take_map(void *user, const struct net_map *m, struct allot_error *e)
{
    (void)e;
    struct bench *b = user;
    double *g = gradient_of(b, m->tensor);
    for (int64_t t = 0; t < m->n_tokens; t++)
        for (int64_t r = 0; r < m->n_rows; r++)
            for (int64_t i = 0; i < m->n_in; i++)
                g[(m->first_row + r) * m->n_in + i] +=
                    (double)m->g[t * m->n_rows + r] * m->x[t * m->n_in + i];
    return ALLOT_OK;
}

static inline allot_status take_lookup(void *user, const struct net_lookup *l, struct allot_error *e)
{
    (void)e;
    struct bench *b = user;
    double *g = gradient_of(b, l->tensor);
    for (int64_t t = 0; t < l->n_tokens; t++)
        for (int64_t i = 0; i < l->n_in; i++)
            g[l->ids[t] * l->n_in + i] += l->g[t * l->n_in + i];
    return ALLOT_OK;
}

static inline allot_status take_vector(void *user, const struct gguf_tensor *t, const double *gradient,
                                       int64_t n, struct allot_error *e)
{
    (void)e;
    double *g = gradient_of(user, t);
    for (int64_t i = 0; i < n; i++)
        g[i] += gradient[i];
    return ALLOT_OK;
}

/* ---- The model --------------------------------------------------------------------------------------- */

static inline void bench_open(struct bench *b, const char *path, int64_t n_seqs, int64_t n_ctx)
{
    *b = (struct bench){.n_seqs = n_seqs, .n_ctx = n_ctx, .n = n_seqs * n_ctx, .move = 0.2};
    b->observer =
        (struct net_observer){.user = b, .map = take_map, .lookup = take_lookup, .vector = take_vector};
    check(gguf_model_open(&b->model, path, &err));
    check(pool_new(&b->pool, 2, &err));
    b->data = calloc((size_t)b->model->n_tensors, sizeof *b->data);
    b->gradients = calloc((size_t)b->model->n_tensors, sizeof *b->gradients);
    for (int64_t i = 0; i < b->model->n_tensors; i++) {
        struct gguf_tensor *t = &b->model->tensors[i];
        /* shared pages keep their contents when a pass forgets a tensor's pages */
        b->data[i] = mmap(NULL, data_bytes(t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(b->data[i] != MAP_FAILED);
        check(gguf_tensor_to_f32(b->model, t, 0, t->n_rows, b->data[i], b->pool, &err));
        t->data = (const uint8_t *)b->data[i];
        t->type = GGML_TYPE_F32;
        t->row_bytes = 4 * t->ne[0];
        t->n_bytes = 4 * t->n_elements;
    }
    check(net_open(&b->net, b->model, &err));
    b->net.exact_gelu = true; /* rounded, the likelihood is not smooth */
    b->ids = malloc(sizeof *b->ids * (size_t)b->n);
    for (int64_t i = 0; i < b->n; i++)
        b->ids[i] = (int32_t)(rng_u64(5, (uint64_t)i) % (uint64_t)b->net.n_vocab);
    b->x = malloc(sizeof *b->x * (size_t)(b->n * b->net.n_embd));
    /* what is inside half of the layers is kept, that of the others made anew */
    int64_t room = (int64_t)sizeof(float) * layer_acts_floats(&b->net, b->n) * (b->net.n_layers / 2);
    check(net_tape_init(&b->tape, &b->net, b->n, &(struct net_placement){.left = room}, &err));
    assert_int_equal(b->tape.n_kept, b->net.n_layers / 2);
}

static inline void bench_close(struct bench *b)
{
    for (int64_t i = 0; i < b->model->n_tensors; i++) {
        munmap(b->data[i], data_bytes(&b->model->tensors[i]));
        free(b->gradients[i]);
    }
    free(b->data);
    free(b->gradients);
    free(b->ids);
    free(b->x);
    net_tape_release(&b->tape);
    net_targets_release(&b->targets);
    net_release(&b->net);
    pool_free(b->pool);
    gguf_model_close(b->model);
}

static inline allot_status note_routing(void *user, const struct net_input *input, struct allot_error *e)
{
    (void)e;
    struct bench *b = user;
    if (input->tensor->ne[2] > 1)
        b->routing = rng_mix(b->routing + (uint64_t)(input->matrix << 32) + (uint64_t)input->n_tokens);
    return ALLOT_OK;
}

static inline float *log_probs(struct bench *b)
{
    struct net_batch batch = {b->ids, b->n_seqs, b->n_ctx};
    struct net_observer observer = {.user = b, .input = note_routing};
    b->routing = 0;
    float *p = malloc(sizeof *p * (size_t)(b->n * b->net.n_vocab));
    check(net_forward(&b->net, b->pool, &batch, b->x, NULL, b->n, &observer, NULL, &err));
    check(net_log_probs(&b->net, b->pool, b->x, b->n, p, &err));
    return p;
}

static inline double likelihood(struct bench *b)
{
    float *p = log_probs(b);
    double sum = 0;
    for (int64_t i = 0; i < b->n_taught * b->net.n_vocab; i++)
        sum += exp(b->taught[i]) * p[i];
    for (int64_t t = b->n_taught; t < b->n; t++)
        if (b->targets.labels[t] >= 0)
            sum += p[t * b->net.n_vocab + b->targets.labels[t]];
    free(p);
    return sum;
}

/* Forward, and labels of the model's own. */
static inline void draw(struct bench *b, uint64_t seed)
{
    struct net_batch batch = {b->ids, b->n_seqs, b->n_ctx};
    net_targets_release(&b->targets);
    check(net_forward(&b->net, b->pool, &batch, b->x, &b->tape, b->n, &b->observer, NULL, &err));
    check(net_targets_draw(&b->targets, &b->net, b->pool, b->x, b->n, seed, &err));
}

static inline void backward(struct bench *b)
{
    struct net_batch batch = {b->ids, b->n_seqs, b->n_ctx};
    check(net_backward(&b->net, b->pool, &batch, b->x, &b->tape, &b->targets, &b->observer, NULL, &err));
}

/* Gradients for unlikely labels, which are large. One position has none. */
static inline void bench_gradients(struct bench *b)
{
    draw(b, 3);
    for (int64_t t = 0; t < b->n; t++)
        b->targets.labels[t] = (int32_t)(rng_u64(17, (uint64_t)t) % (uint64_t)b->net.n_vocab);
    b->targets.labels[7] = -1;
    backward(b);
}

/* ---- Central differences ----------------------------------------------------------------------------- */

/* Some consecutive weights of a tensor. */
struct slice {
    const char *name;
    float *w;
    const double *g;
    int64_t n;
    uint64_t seed;
};

/* l(w + h d) - l(w - h d), w restored. NaN if some token takes other experts on the two sides. */
static inline double change_along(struct bench *b, const struct slice *s, const float *direction, double h)
{
    float *original = malloc(sizeof *original * (size_t)s->n);
    double sides[2];
    uint64_t routing[2];
    memcpy(original, s->w, sizeof *original * (size_t)s->n);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < s->n; i++)
            s->w[i] = original[i] + (float)((side ? h : -h) * direction[i]);
        sides[side] = likelihood(b);
        routing[side] = b->routing;
    }
    memcpy(s->w, original, sizeof *original * (size_t)s->n);
    free(original);
    return routing[0] == routing[1] ? sides[1] - sides[0] : NAN;
}

/* (l(w + h d) - l(w - h d)) / 2h by Richardson's extrapolation from h and 2h, which move the likelihood by
 * about move and twice as much. Steps become smaller where they would change which experts are taken. */
static inline double central_difference(struct bench *b, const struct slice *s, const float *direction,
                                        double expected)
{
    double measured = NAN;
    for (double move = b->move; isnan(measured) && move > b->move / 20; move /= 2) {
        double h = move / expected;
        double one = change_along(b, s, direction, h), two = change_along(b, s, direction, 2 * h);
        measured = (4 * one / (2 * h) - two / (4 * h)) / 3;
    }
    return measured;
}

/* The weights do not matter at all, then: a change of their own size changes nothing (or a smaller one, as
 * above). */
static inline void check_without_gradient(struct bench *b, const struct slice *s, float *direction)
{
    for (int64_t i = 0; i < s->n; i++)
        direction[i] = s->w[i] * (float)(rng_u64(s->seed, (uint64_t)i) % 3);
    double change = NAN;
    for (double h = 0.5; isnan(change) && h > 1e-4; h /= 4)
        change = change_along(b, s, direction, h);
    b->n_without++;
    if (fabs(change) < 1e-3)
        return;
    print_message("%s: no gradient, but the likelihood changes by %g\n", s->name, change);
    b->n_wrong++;
}

static inline void check_slice(struct bench *b, const struct slice *s)
{
    float *direction = malloc(sizeof *direction * (size_t)s->n);
    double expected = 0, g_norm = 0, w_norm = 0;
    for (int64_t i = 0; i < s->n; i++) {
        direction[i] = (float)(s->g[i] * (double)(rng_u64(s->seed, (uint64_t)i) % 3)); /* 0, 1 or 2 */
        expected += s->g[i] * direction[i];
        g_norm += s->g[i] * s->g[i];
        w_norm += (double)s->w[i] * s->w[i];
    }
    if (sqrt(g_norm * w_norm) < 1e-4) {
        check_without_gradient(b, s, direction);
    } else {
        double measured = central_difference(b, s, direction, expected),
               error = fabs(measured / expected - 1);
        b->n_checked++;
        b->worst = error <= b->worst ? b->worst : error; /* NaN sticks */
        if (!(error < 0.01)) {
            print_message("%s: gradient along the direction %g, central difference %g (gradient %g, "
                          "weights %g)\n",
                          s->name, expected, measured, sqrt(g_norm), sqrt(w_norm));
            b->n_wrong++;
        }
    }
    free(direction);
}

/* The whole tensor, and every matrix of a stack. */
static inline void check_tensor(struct bench *b, int64_t index)
{
    const struct gguf_tensor *t = &b->model->tensors[index];
    double *g = b->gradients[index];
    if (g == NULL)
        fail_msg("%s has no gradient", t->name);
    struct slice whole = {t->name, b->data[index], g, t->n_elements, (uint64_t)index};
    check_slice(b, &whole);
    for (int64_t e = 0; e < t->ne[2] && t->ne[2] > 1; e++) {
        int64_t n = t->ne[0] * t->ne[1];
        char name[160];
        snprintf(name, sizeof name, "%s, matrix %d", t->name, (int)e);
        struct slice one = {name, b->data[index] + e * n, g + e * n, n, (uint64_t)(1000 * index + e)};
        check_slice(b, &one);
    }
}

static inline bool is_rope_tensor(const struct gguf_tensor *t)
{
    return strncmp(t->name, "rope_", 5) == 0;
}

#endif
