/* test_net_gradient.c - gradients against central differences, and Fisher estimates against KL.
 * SPDX-License-Identifier: MIT */
#include <unistd.h>

#include "folder.h"
#include "gradient.h"
#include "random_model.h"

enum { N_CTX = 32, CHUNK = 16, N_SEQS = 64 };

static void check_gradients(const char *path)
{
    struct bench b;
    bench_open(&b, path, 2, N_CTX);
    bench_gradients(&b);
    for (int64_t i = 0; i < b.model->n_tensors; i++)
        if (b.model->tensors[i].layer < 2 && !is_rope_tensor(&b.model->tensors[i]))
            check_tensor(&b, i);
    print_message("%s: %d tensors, largest relative difference %.2g\n", path, b.n_checked, b.worst);
    assert_true(b.n_checked >= 12 && b.n_without == 0 && b.n_wrong == 0);
    bench_close(&b);
}

static void test_gradients(void **state)
{
    (void)state;
    const char *path = in_folder("random.gguf");
    check_gradients(TEST_DATA_DIR "/tiny-llama-bf16.gguf");
    static const struct random_model rows[] = {
        {2, 48, 80, 150, 6, 2, 8, .tied = true, .biases = true, .rope_factors = true, .seed = 1},
        {2, 32, 64, 2500, 4, 4, 8, .tied = false,
         .settings = "rope.scaling.type=linear rope.scaling.factor=4.0", .seed = 2},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(random_model_write(path, &rows[i]));
        check_gradients(path);
        remove(path);
    }
}

/* The first sequence has a teacher: the same network after other tokens. */
static void test_teacher(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, TEST_DATA_DIR "/tiny-llama-bf16.gguf", 2, N_CTX);
    struct net_targets drawn;
    struct net_teacher teacher = {.net = &b.net, .n = N_CTX};
    float *x = malloc(sizeof *x * (size_t)(N_CTX * b.net.n_embd)),
          *p = malloc(sizeof *p * (size_t)(N_CTX * b.net.n_vocab));
    struct net_batch other = {b.ids + N_CTX, 1, N_CTX};
    check(net_forward(&b.net, b.pool, &other, x, NULL, N_CTX, NULL, NULL, &err));
    check(net_log_probs(&b.net, b.pool, x, N_CTX, p, &err));
    check(net_targets_draw(&drawn, &b.net, b.pool, x, N_CTX, 1, &err));
    teacher.x = x;
    teacher.lse = drawn.lse;
    draw(&b, 3);
    b.targets.teacher = &teacher;
    b.taught = p;
    b.n_taught = N_CTX;
    backward(&b);
    for (int64_t i = 0; i < b.model->n_tensors; i++)
        if (b.model->tensors[i].layer < 1 || b.model->tensors[i].layer == 5)
            check_tensor(&b, i);
    print_message("with a teacher: %d tensors, largest relative difference %.2g\n", b.n_checked, b.worst);
    assert_true(b.n_checked >= 12 && b.n_without == 0 && b.n_wrong == 0);
    net_targets_release(&drawn);
    free(x);
    free(p);
    bench_close(&b);
}

/* ---- KL of small random changes over its Fisher estimate ------------------------------------------ */

static double mean_kl(const float *p, const float *q, int64_t n, int64_t n_vocab)
{
    double sum = 0;
    for (int64_t i = 0; i < n * n_vocab; i++)
        sum += exp(p[i]) * ((double)p[i] - q[i]);
    return sum / (double)n;
}

/* An error of one tensor, and the sums of its products with the gradient. */
struct moved {
    const struct gguf_tensor *tensor;
    const float *error;
    double u[N_SEQS * N_CTX / CHUNK];
};

static bool is_moved(void *user, const struct gguf_tensor *t)
{
    return t == ((struct moved *)user)->tensor;
}

static allot_status project_map(void *user, const struct net_map *m, struct allot_error *e)
{
    (void)e;
    struct moved *moved = user;
    for (int64_t t = 0; t < m->n_tokens; t++) {
        for (int64_t r = 0; r < m->n_rows; r++) {
            const float *error = moved->error + (m->first_row + r) * m->n_in, *x = m->x + t * m->n_in;
            double product = 0;
            for (int64_t i = 0; i < m->n_in; i++)
                product += (double)error[i] * x[i];
            moved->u[t / CHUNK] += m->g[t * m->n_rows + r] * product;
        }
    }
    return ALLOT_OK;
}

static allot_status project_lookup(void *user, const struct net_lookup *l, struct allot_error *e)
{
    (void)e;
    struct moved *moved = user;
    for (int64_t t = 0; t < l->n_tokens; t++)
        for (int64_t i = 0; i < l->n_in; i++)
            moved->u[t / CHUNK] += (double)l->g[t * l->n_in + i] * moved->error[l->ids[t] * l->n_in + i];
    return ALLOT_OK;
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
    bench_open(&b, TEST_DATA_DIR "/tiny-llama-bf16.gguf", N_SEQS, N_CTX);
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
        struct moved moved = {.tensor = t, .error = error};
        b.observer = (struct net_observer){
            .user = &moved, .wants = is_moved, .map = project_map, .lookup = project_lookup};
        draw(&b, 100 + (uint64_t)k);
        backward(&b);
        double fisher = 0;
        for (int64_t c = 0; c < b.n / CHUNK; c++)
            fisher += moved.u[c] * moved.u[c] / (2.0 * (double)b.n);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_teacher),
                                       cmocka_unit_test(test_second_order)};
    return cmocka_run_group_tests(tests, make_folder, tear_down);
}
