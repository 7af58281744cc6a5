/* test_sample.c - texts of the model's own: seeds, threads, and the distribution that tokens come from.
 * SPDX-License-Identifier: MIT */
#include "fixture.h"

#include "measure/sample.h"

static struct allot_error err;

static void check(allot_status status)
{
    if (status != ALLOT_OK)
        fail_msg("%s", err.message);
}

/* n_groups groups from `first` on, by n_threads; caller frees. */
static int32_t *sample(const char *path, struct sample_options options, int64_t first, int64_t n_groups,
                       int n_threads)
{
    struct pool *pool;
    struct sampler *sampler;
    const size_t per_group = (size_t)options.n_ctx * SAMPLE_GROUP;
    int32_t *ids = malloc((size_t)n_groups * per_group * sizeof *ids);
    check(pool_new(&pool, n_threads, &err));
    check(sampler_open(&sampler, path, &options, n_groups, pool, &err));
    assert_int_equal(sampler_groups(sampler), n_groups < n_threads ? n_groups : n_threads);
    for (int64_t done = 0; done < n_groups;) {
        int64_t n = sampler_groups(sampler) < n_groups - done ? sampler_groups(sampler) : n_groups - done;
        check(sampler_run(sampler, ids + (size_t)done * per_group, first + done, n, 0, 1, NULL, &err));
        done += n;
    }
    sampler_close(sampler);
    pool_free(pool);
    return ids;
}

static int64_t n_same(const int32_t *a, const int32_t *b, int64_t n)
{
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++)
        same += a[i] == b[i];
    return same;
}

static void test_seeds_and_threads(void **state)
{
    enum { N_CTX = 24, GROUP = N_CTX * SAMPLE_GROUP, N = 3 * GROUP };
    const struct sample_options options = {5, 0, N_CTX}, other_seed = {6, 0, N_CTX},
                                other_stream = {5, 1, N_CTX};
    (void)state;
    int32_t *ids = sample(tiny_path, options, 0, 3, 1), *threads = sample(tiny_path, options, 0, 3, 2),
            *tail = sample(tiny_path, options, 2, 1, 3), *seed = sample(tiny_path, other_seed, 0, 3, 2),
            *stream = sample(tiny_path, other_stream, 0, 3, 2);
    assert_memory_equal(threads, ids, N * sizeof *ids);
    assert_memory_equal(tail, ids + 2 * GROUP, GROUP * sizeof *ids);
    /* a tiny model repeats itself by chance, but not for long */
    assert_true(n_same(seed, ids, N) < N / 3);
    assert_true(n_same(stream, ids, N) < N / 3);
    assert_true(n_same(ids, ids + GROUP, GROUP) < GROUP / 3);
    free(ids);
    free(threads);
    free(tail);
    free(seed);
    free(stream);
}

/* The tiny model as one whose texts begin with BOS. */
static void with_bos(struct gguf_context *metadata, struct ggml_context *tensors)
{
    (void)tensors;
    gguf_set_val_bool(metadata, "tokenizer.ggml.add_bos_token", true);
}

/* ---- Against libllama's logits ----------------------------------------------------------------------------
 */

/* Softmax of what libllama gives behind one token, at a temperature. */
static double *distribution(const char *path, int32_t token, double temperature, int32_t *n_vocab)
{
    struct engine_model llama;
    struct engine engine;
    const float *logits;
    double sum = 0;
    check(engine_model_open(&llama, path, TEXT_LOAD_MODEL, &err));
    check(engine_open(&engine, &llama, 32, 32, NULL, &err));
    *n_vocab = llama_vocab_n_tokens(llama.vocab);
    check(engine_decode(&logits, &engine, &token, 0, 0, 1, &err));
    double *p = malloc((size_t)*n_vocab * sizeof *p);
    for (int32_t i = 0; i < *n_vocab; i++)
        sum += p[i] = exp(logits[i] / temperature);
    for (int32_t i = 0; i < *n_vocab; i++)
        p[i] /= sum;
    engine_close(&engine);
    engine_model_close(&llama);
    return p;
}

/* Chi-square of counts over the tokens expected at least 5 times, the others together; *n_bins of them. */
static double chi_square(const int64_t *counts, const double *p, int32_t n_vocab, int64_t n, int *n_bins)
{
    double sum = 0, rest_p = 0, rest = 0;
    *n_bins = 1;
    for (int32_t i = 0; i < n_vocab; i++) {
        const double expected = p[i] * (double)n, d = (double)counts[i] - expected;
        if (expected >= 5) {
            sum += d * d / expected;
            ++*n_bins;
        } else {
            rest_p += expected;
            rest += (double)counts[i];
        }
    }
    return sum + (rest - rest_p) * (rest - rest_p) / rest_p;
}

static void test_distribution(void **state)
{
    enum { GROUPS = 50, N = GROUPS * SAMPLE_GROUP };
    const struct sample_options options = {11, 0, 2};
    int32_t n_vocab;
    const char *path = write_changed("bos.gguf", with_bos);
    int n_bins, n_bins_hot;
    (void)state;
    int32_t *ids = sample(path, options, 0, GROUPS, 2);
    double *p = distribution(path, ids[0], 1, &n_vocab), *hot = distribution(path, ids[0], 1.25, &n_vocab);
    int64_t *counts = calloc((size_t)n_vocab, sizeof *counts);
    for (int i = 0; i < N; i++) {
        assert_int_equal(ids[2 * i], ids[0]); /* BOS */
        counts[ids[2 * i + 1]]++;
    }
    const double x = chi_square(counts, p, n_vocab, N, &n_bins);
    const double x_hot = chi_square(counts, hot, n_vocab, N, &n_bins_hot);
    const double bound = n_bins + 4 * sqrt(2.0 * n_bins), bound_hot = n_bins_hot + 4 * sqrt(2.0 * n_bins_hot);
    print_message("chi-square %.1f of %d bins, bound %.1f; of temperature 1.25: %.1f, bound %.1f\n", x,
                  n_bins, bound, x_hot, bound_hot);
    assert_true(n_bins >= 8);
    assert_true(x < bound);
    assert_true(x_hot > bound_hot);
    free(ids);
    free(p);
    free(hot);
    free(counts);
}

/* Each position is drawn from what the model makes of all before it, and what is drawn from a distribution
 * has its entropy as mean surprise. */
static void test_positions(void **state)
{
    enum { N_CTX = 32, N = SAMPLE_GROUP * N_CTX };
    const struct sample_options options = {3, 7, N_CTX};
    struct engine_model llama;
    struct engine engine;
    double nll = 0, entropy = 0;
    (void)state;
    int32_t *ids = sample(tiny_path, options, 0, 1, 1);
    check(engine_model_open(&llama, tiny_path, TEXT_LOAD_MODEL, &err));
    check(engine_open(&engine, &llama, N_CTX, N_CTX, NULL, &err));
    const int32_t n_vocab = llama_vocab_n_tokens(llama.vocab);
    for (int s = 0; s < SAMPLE_GROUP; s++) {
        const float *logits;
        check(engine_decode(&logits, &engine, ids + s * N_CTX, 0, 0, N_CTX, &err));
        for (int t = 0; t < N_CTX - 1; t++, logits += n_vocab) {
            double sum = 0, mean = 0;
            for (int32_t i = 0; i < n_vocab; i++)
                sum += exp(logits[i]);
            for (int32_t i = 0; i < n_vocab; i++)
                mean += exp(logits[i]) / sum * (log(sum) - logits[i]);
            nll += log(sum) - logits[ids[s * N_CTX + t + 1]];
            entropy += mean;
        }
    }
    nll /= SAMPLE_GROUP * (N_CTX - 1);
    entropy /= SAMPLE_GROUP * (N_CTX - 1);
    print_message("surprise %.3f, entropy %.3f\n", nll, entropy);
    assert_true(fabs(nll - entropy) < 0.35); /* some 4 standard errors */
    engine_close(&engine);
    engine_model_close(&llama);
    free(ids);
}

/* ---- Beginnings and ends ----------------------------------------------------------------------------------
 */

static int32_t often; /* a token that the model often begins with */

static void often_ends(struct gguf_context *metadata, struct ggml_context *tensors)
{
    with_bos(metadata, tensors);
    gguf_set_val_u32(metadata, "tokenizer.ggml.eos_token_id", (uint32_t)often);
}

static void test_beginnings(void **state)
{
    enum { N_CTX = 4, GROUPS = 4, N = GROUPS * SAMPLE_GROUP };
    const struct sample_options options = {1, 0, N_CTX};
    struct engine_model llama;
    int n_distinct = 0;
    (void)state;
    int32_t *ids = sample(tiny_path, options, 0, GROUPS, 2);
    check(engine_model_open(&llama, tiny_path, TEXT_LOAD_MODEL, &err));
    for (int i = 0; i < N; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen |= ids[k * N_CTX] == ids[i * N_CTX];
        n_distinct += !seen;
        assert_false(llama_vocab_is_control(llama.vocab, ids[i * N_CTX]));
        assert_false(llama_vocab_is_eog(llama.vocab, ids[i * N_CTX]));
    }
    assert_true(n_distinct > N * 3 / 4);
    engine_model_close(&llama);
    free(ids);
}

static void test_ends(void **state)
{
    enum { N_CTX = 40 };
    const struct sample_options options = {1, 0, N_CTX};
    struct engine_model llama;
    int n_ends = 0;
    (void)state;
    const char *path = write_changed("bos.gguf", with_bos);
    int32_t *ids = sample(path, options, 0, 1, 1);
    often = ids[1];
    free(ids);
    path = write_changed("ends.gguf", often_ends);
    ids = sample(path, options, 0, 1, 1);
    check(engine_model_open(&llama, path, TEXT_LOAD_MODEL, &err));
    for (int i = 0; i < SAMPLE_GROUP * N_CTX; i++)
        if (ids[i] == often && i % N_CTX < N_CTX - 1) {
            n_ends++;
            assert_int_equal(ids[i + 1], llama_vocab_bos(llama.vocab));
        }
    assert_true(n_ends > 0);
    assert_int_equal(ids[1], often);
    engine_model_close(&llama);
    free(ids);
}

/* ---- Refusals and stops -----------------------------------------------------------------------------------
 */

static bool stop_at_three(void *user, const char *stage, int64_t done, int64_t total)
{
    (void)user;
    assert_string_equal(stage, "sample");
    assert_int_equal(total, 700);
    return done == 100 + 3 * SAMPLE_GROUP;
}

static void test_stops(void **state)
{
    const struct allot_progress progress = {stop_at_three, NULL, NULL};
    struct sample_options options = {1, 0, 16};
    int32_t ids[16 * SAMPLE_GROUP];
    struct sampler *sampler;
    struct pool *pool;
    (void)state;
    check(pool_new(&pool, 1, &err));
    check(sampler_open(&sampler, tiny_path, &options, 1, pool, &err));
    assert_int_equal(sampler_run(sampler, ids, 0, 1, 100, 700, &progress, &err), ALLOT_ERR_INTERRUPTED);
    sampler_close(sampler);
    options.n_ctx = 1 << 20;
    assert_int_equal(sampler_open(&sampler, tiny_path, &options, 1, pool, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "tokens of context"));
    pool_free(pool);
}

static void test_draw(void **state)
{
    static const float logits[] = {0, -INFINITY, 1.0986123f /* ln 3 */, -INFINITY}, bad[] = {0, NAN},
                       none[] = {-INFINITY, -INFINITY}, inf[] = {0, INFINITY};
    (void)state;
    assert_int_equal(sample_draw(logits, 4, 1e-9), 0);
    assert_int_equal(sample_draw(logits, 4, 0.2499), 0);
    assert_int_equal(sample_draw(logits, 4, 0.2501), 2);
    assert_int_equal(sample_draw(logits, 4, 1 - 1e-16), 2);
    assert_int_equal(sample_draw(bad, 2, 0.5), -1);
    assert_int_equal(sample_draw(none, 2, 0.5), -1);
    assert_int_equal(sample_draw(inf, 2, 0.5), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_seeds_and_threads),
                                       cmocka_unit_test(test_distribution),
                                       cmocka_unit_test(test_positions),
                                       cmocka_unit_test(test_beginnings),
                                       cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_stops),
                                       cmocka_unit_test(test_draw)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
