/* test_net_gradient.c - gradients against central differences, and Fisher estimates against KL.
 * SPDX-License-Identifier: MIT
 *
 * The likelihood of fixed labels is summed in double; a tensor is moved along its own gradient,
 * every component scaled by a random factor, so that a wrong component shows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "gguf/convert.h"
#include "net/net.h"
#include "random_model.h"

enum { N_CTX = 32, CHUNK = 16 };

/* A model whose tensors can be changed: each is a float32 copy. */
struct bench {
    struct gguf_model *model;
    struct net net;
    struct pool *pool;
    float **data; /* [n_tensors] */
    int32_t *ids;
    int64_t n_seqs, n;
    float *x, *states;
    struct net_targets targets;
    double **gradients; /* [n_tensors] */
    /* for the second-order test: an error of one tensor, and the sum of its products per chunk */
    const struct gguf_tensor *moved;
    const float *error;
    double *u;
};

static struct allot_error err;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

static size_t data_bytes(const struct gguf_tensor *t)
{
    return sizeof(float) * (size_t)t->n_elements;
}

static void bench_open(struct bench *b, const char *path, int64_t n_seqs)
{
    *b = (struct bench){.n_seqs = n_seqs, .n = n_seqs * N_CTX};
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
    b->ids = malloc(sizeof *b->ids * (size_t)b->n);
    for (int64_t i = 0; i < b->n; i++)
        b->ids[i] = (int32_t)(rng_u64(5, (uint64_t)i) % (uint64_t)b->net.n_vocab);
    b->x = malloc(sizeof *b->x * (size_t)(b->n * b->net.n_embd));
    b->states = malloc(sizeof *b->states * (size_t)(b->net.n_layers * b->n * b->net.n_embd));
    b->u = calloc((size_t)(b->n / CHUNK), sizeof *b->u);
}

static void bench_close(struct bench *b)
{
    for (int64_t i = 0; i < b->model->n_tensors; i++) {
        munmap(b->data[i], data_bytes(&b->model->tensors[i]));
        free(b->gradients[i]);
    }
    free(b->data);
    free(b->gradients);
    free(b->ids);
    free(b->x);
    free(b->states);
    free(b->u);
    net_targets_release(&b->targets);
    net_release(&b->net);
    pool_free(b->pool);
    gguf_model_close(b->model);
}

static void forward(struct bench *b, float *states)
{
    struct net_batch batch = {b->ids, b->n_seqs, N_CTX};
    check(net_forward(&b->net, b->pool, &batch, b->x, states, 4096, NULL, NULL, &err));
}

static float *log_probs(struct bench *b)
{
    float *p = malloc(sizeof *p * (size_t)(b->n * b->net.n_vocab));
    forward(b, NULL);
    check(net_log_probs(&b->net, b->pool, b->x, b->n, p, &err));
    return p;
}

static double likelihood(struct bench *b)
{
    float *p = log_probs(b);
    double sum = 0;
    for (int64_t t = 0; t < b->n; t++)
        if (b->targets.labels[t] >= 0)
            sum += p[t * b->net.n_vocab + b->targets.labels[t]];
    free(p);
    return sum;
}

static double *gradient_of(struct bench *b, const struct gguf_tensor *t)
{
    double **g = &b->gradients[t - b->model->tensors];
    if (*g == NULL)
        *g = calloc((size_t)t->n_elements, sizeof **g);
    return *g;
}

static allot_status take_map(void *user, const struct net_map *m, struct allot_error *e)
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

/* For the second-order test: products with the error of the moved tensor. */
static bool is_moved(void *user, const struct gguf_tensor *t)
{
    return t == ((struct bench *)user)->moved;
}

static allot_status project_map(void *user, const struct net_map *m, struct allot_error *e)
{
    (void)e;
    struct bench *b = user;
    for (int64_t t = 0; t < m->n_tokens; t++) {
        for (int64_t r = 0; r < m->n_rows; r++) {
            const float *error = b->error + (m->first_row + r) * m->n_in, *x = m->x + t * m->n_in;
            double product = 0;
            for (int64_t i = 0; i < m->n_in; i++)
                product += (double)error[i] * x[i];
            b->u[t / CHUNK] += m->g[t * m->n_rows + r] * product;
        }
    }
    return ALLOT_OK;
}

static allot_status project_lookup(void *user, const struct net_lookup *l, struct allot_error *e)
{
    (void)e;
    struct bench *b = user;
    for (int64_t t = 0; t < l->n_tokens; t++)
        for (int64_t i = 0; i < l->n_in; i++)
            b->u[t / CHUNK] += (double)l->g[t * l->n_in + i] * b->error[l->ids[t] * l->n_in + i];
    return ALLOT_OK;
}

static allot_status take_lookup(void *user, const struct net_lookup *l, struct allot_error *e)
{
    (void)e;
    struct bench *b = user;
    double *g = gradient_of(b, l->tensor);
    for (int64_t t = 0; t < l->n_tokens; t++)
        for (int64_t i = 0; i < l->n_in; i++)
            g[l->ids[t] * l->n_in + i] += l->g[t * l->n_in + i];
    return ALLOT_OK;
}

static allot_status take_vector(void *user, const struct gguf_tensor *t, const double *gradient, int64_t n,
                                struct allot_error *e)
{
    (void)e;
    double *g = gradient_of(user, t);
    for (int64_t i = 0; i < n; i++)
        g[i] += gradient[i];
    return ALLOT_OK;
}

static void backward(struct bench *b)
{
    struct net_batch batch = {b->ids, b->n_seqs, N_CTX};
    struct net_observer o = {.user = b, .map = take_map, .lookup = take_lookup, .vector = take_vector};
    check(net_backward(&b->net, b->pool, &batch, b->x, b->states, &b->targets, &o, NULL, &err));
}

static void draw(struct bench *b, uint64_t seed)
{
    net_targets_release(&b->targets);
    forward(b, b->states);
    check(net_targets_draw(&b->targets, &b->net, b->pool, b->x, b->n, seed, &err));
}

/* (l(w + h d) - l(w - h d)) / 2h by Richardson's extrapolation from h and 2h, against sum g d. */
static void check_tensor(struct bench *b, int64_t index, double *worst)
{
    const struct gguf_tensor *t = &b->model->tensors[index];
    const double *g = b->gradients[index];
    float *w = b->data[index], *original = malloc(sizeof *w * (size_t)t->n_elements);
    float *direction = malloc(sizeof *direction * (size_t)t->n_elements);
    if (g == NULL)
        fail_msg("%s has no gradient", t->name);
    memcpy(original, w, sizeof *w * (size_t)t->n_elements);
    double expected = 0, norm = 0, difference[2];
    for (int64_t i = 0; i < t->n_elements; i++) {
        double factor = (double)(rng_u64((uint64_t)index, (uint64_t)i) % 3); /* 0, 1 or 2 */
        direction[i] = (float)(g[i] * factor);
        expected += g[i] * direction[i];
        norm += (double)direction[i] * direction[i];
    }
    for (int k = 0; k < 2; k++) {
        /* moves the likelihood by about 0.2 and 0.4 nats over all positions */
        double h = 0.2 * (k + 1) / expected, sides[2];
        for (int s = 0; s < 2; s++) {
            for (int64_t i = 0; i < t->n_elements; i++)
                w[i] = original[i] + (float)((s ? h : -h) * direction[i]);
            sides[s] = likelihood(b);
        }
        difference[k] = (sides[1] - sides[0]) / (2 * h);
    }
    memcpy(w, original, sizeof *w * (size_t)t->n_elements);
    double measured = (4 * difference[0] - difference[1]) / 3, error = fabs(measured / expected - 1);
    if (!(error < 0.01))
        fail_msg("%s: gradient along the direction %g, central difference %g (norm %g)", t->name, expected,
                 measured, norm);
    *worst = fmax(*worst, error);
    free(original);
    free(direction);
}

static void check_gradients(const char *path, int64_t n_layers_checked)
{
    struct bench b;
    double worst = 0;
    int64_t n = 0;
    bench_open(&b, path, 2);
    draw(&b, 3);
    for (int64_t t = 0; t < b.n; t++) /* unlikely labels: large gradients */
        b.targets.labels[t] = (int32_t)(rng_u64(17, (uint64_t)t) % (uint64_t)b.net.n_vocab);
    b.targets.labels[7] = -1; /* a position without a label */
    backward(&b);
    for (int64_t i = 0; i < b.model->n_tensors; i++) {
        if (b.model->tensors[i].layer >= n_layers_checked ||
            strcmp(b.model->tensors[i].name, "rope_freqs.weight") == 0)
            continue;
        check_tensor(&b, i, &worst);
        n++;
    }
    print_message("%s: %d tensors, largest relative difference %.2g\n", path, (int)n, worst);
    assert_true(n >= 12);
    bench_close(&b);
}

static void test_gradients(void **state)
{
    (void)state;
    const char *path = in_folder("random.gguf");
    check_gradients(TEST_DATA_DIR "/tiny-llama-bf16.gguf", 2);
    static const struct random_model rows[] = {
        {2, 48, 80, 150, 6, 2, 8, .tied = true, .biases = true, .rope_factors = true, .seed = 1},
        {2, 32, 64, 2500, 4, 4, 8, .tied = false,
         .settings = "rope.scaling.type=linear rope.scaling.factor=4.0", .seed = 2},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(random_model_write(path, &rows[i]));
        check_gradients(path, 2);
        remove(path);
    }
}

/* ---- KL of small random changes over its Fisher estimate ------------------------------------------ */

static double mean_kl(const float *p, const float *q, int64_t n, int64_t n_vocab)
{
    double sum = 0;
    for (int64_t i = 0; i < n * n_vocab; i++)
        sum += exp(p[i]) * ((double)p[i] - q[i]);
    return sum / (double)n;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void test_second_order(void **state)
{
    (void)state;
    struct bench b;
    double ratios[64];
    int n_ratios = 0;
    bench_open(&b, TEST_DATA_DIR "/tiny-llama-bf16.gguf", 64);
    float *before = log_probs(&b);
    for (int64_t k = 0; k < b.model->n_tensors && n_ratios < 64; k++) {
        const struct gguf_tensor *t = &b.model->tensors[k];
        if (!gguf_tensor_quantizable(t) || (t->layer >= 0 && t->layer % 2 != 1))
            continue;
        float *original = malloc(sizeof(float) * (size_t)t->n_elements),
              *error = malloc(sizeof(float) * (size_t)t->n_elements);
        double rms = 0;
        memcpy(original, b.data[k], sizeof(float) * (size_t)t->n_elements);
        for (int64_t i = 0; i < t->n_elements; i++)
            rms += (double)original[i] * original[i] / (double)t->n_elements;
        for (int64_t i = 0; i < t->n_elements; i++)
            error[i] = (float)(0.01 * sqrt(rms) * rng_normal(900 + (uint64_t)k, (uint64_t)i));
        memset(b.u, 0, sizeof *b.u * (size_t)(b.n / CHUNK));
        b.moved = t;
        b.error = error;
        draw(&b, 100 + (uint64_t)k);
        struct net_batch batch = {b.ids, b.n_seqs, N_CTX};
        struct net_observer o = {.user = &b, .wants = is_moved, .map = project_map, .lookup = project_lookup};
        check(net_backward(&b.net, b.pool, &batch, b.x, b.states, &b.targets, &o, NULL, &err));
        double fisher = 0;
        for (int64_t c = 0; c < b.n / CHUNK; c++)
            fisher += b.u[c] * b.u[c] / (2.0 * (double)b.n);
        for (int64_t i = 0; i < t->n_elements; i++)
            b.data[k][i] = original[i] + error[i];
        float *after = log_probs(&b);
        memcpy(b.data[k], original, sizeof(float) * (size_t)t->n_elements);
        ratios[n_ratios++] = mean_kl(before, after, b.n, b.net.n_vocab) / fisher;
        free(after);
        free(original);
        free(error);
    }
    qsort(ratios, (size_t)n_ratios, sizeof *ratios, compare_doubles);
    print_message("KL over Fisher estimate, %d tensors: median %.3f, from %.3f to %.3f\n", n_ratios,
                  ratios[n_ratios / 2], ratios[0], ratios[n_ratios - 1]);
    assert_true(n_ratios >= 14);
    assert_true(ratios[n_ratios / 2] > 0.9 && ratios[n_ratios / 2] < 1.1);
    free(before);
    bench_close(&b);
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_second_order)};
    return cmocka_run_group_tests(tests, make_folder, tear_down);
}
