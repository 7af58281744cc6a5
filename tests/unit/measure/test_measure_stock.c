/* test_measure_stock.c - the same windows through llama-perplexity --kl-divergence.
 * SPDX-License-Identifier: MIT
 *
 * The tool keeps the base's log-probabilities as 16-bit codes over at most 16 nats, so each has an error
 * of at most STEP/2, evenly spread: sigma = STEP/sqrt(12). From that the tolerances, n scored tokens:
 *   ln PPL(base): the mean of n such errors: 4 sigma/sqrt(n)
 *   mean KL: per token sum p e (1 + log p/p'), at most e times about 1: 4 sigma/sqrt(n), and 1e-6 for its
 * float sums standard error of KL: the errors' own share, 2 sigma/sqrt(n) a percentile of KL moves by no more
 * than a token's own error: STEP RMS dp: the root mean square of p e: sigma same top: only where the base's
 * two best codes coincide: 3 tokens ln PPL(candidate) has no codes in it: 2e-6 for float sums and the printed
 * digits. With the tool's -b equal to the context both decode the same tiles; its default mixes windows in a
 * batch, which moves ggml's own rounding by more than all of this. The tool rarely ends before it prints its
 * last table; then it is run again. */
#include "fixture.h"

#include "text/text.h"

static const double STEP = 16.0 / 65535.0;
enum { MAX_RUNS = 5 };

static char *read_all(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *len = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*len + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *len, file), *len);
    bytes[*len] = '\0';
    fclose(file);
    return bytes;
}

/* Runs llama-perplexity until its output holds `last`; the output, which the caller frees. */
static char *perplexity(const char *arguments, const char *last)
{
    const char *log = in_folder("perplexity.log");
    for (int run = 1; run <= MAX_RUNS; run++) {
        size_t len;
        int code = run_tool(log, "llama-perplexity", arguments);
        char *output = read_all(log, &len);
        if (code == 0 && strstr(output, last) != NULL)
            return output;
        print_message("llama-perplexity ended early (code %d), run %d of %d\n", code, run, MAX_RUNS);
        free(output);
    }
    fail_msg("llama-perplexity %s never printed \"%s\"", arguments, last);
    return NULL;
}

/* The number after "label   :", and the one after its +- sign. */
static double number_of(const char *output, const char *label, double *error)
{
    const char *at = strstr(output, label);
    assert_non_null(at);
    at += strlen(label);
    at += strspn(at, " :");
    char *end;
    double value = strtod(at, &end);
    assert_true(end > at);
    if (error != NULL) {
        at = strstr(end, "\xc2\xb1");
        assert_non_null(at);
        *error = strtod(at + 2, NULL);
    }
    return value;
}

/* The tool's file begins with its windows' tokens. */
static void check_tokens(const char *base_file, const struct text_windows *windows)
{
    size_t len;
    char *bytes = read_all(base_file, &len);
    int32_t head[3];
    assert_true(len > 20 && memcmp(bytes, "_logits_", 8) == 0);
    memcpy(head, bytes + 8, sizeof head);
    assert_int_equal(head[0], windows->n_ctx);
    assert_int_equal(head[2], windows->n);
    assert_memory_equal(bytes + 20, windows->ids,
                        (size_t)(windows->n * windows->n_ctx) * sizeof *windows->ids);
    free(bytes);
}

static void compare(const struct measure_stats *ours, const char *output)
{
    double sigma = STEP / sqrt(12.0), root = sqrt((double)ours->n_tokens), error;
    assert_near(log(number_of(output, "Mean PPL(Q)", NULL)), ours->nll.mean, 2e-6);
    assert_near(log(number_of(output, "Mean PPL(base)", NULL)), ours->nll_base.mean, 4 * sigma / root + 2e-6);
    assert_near(number_of(output, "Mean ln(PPL(Q)/PPL(base))", NULL), ours->ln_ratio.mean,
                4 * sigma / root + 2e-6);
    assert_near(number_of(output, "Mean    KLD", &error), ours->kl.mean, 4 * sigma / root + 1e-6);
    assert_near(error, ours->kl_se_tokens, 2 * sigma / root + 1e-6);
    assert_near(number_of(output, "Maximum KLD", NULL), ours->kl_max, STEP);
    assert_near(number_of(output, "99.9%   KLD", NULL), ours->kl_p999, STEP);
    assert_near(number_of(output, "99.0%   KLD", NULL), ours->kl_p99, STEP);
    assert_near(number_of(output, "90.0%   KLD", NULL), ours->kl_p90, STEP);
    assert_near(number_of(output, "Median  KLD", NULL), ours->kl_median, STEP);
    assert_near(number_of(output, "RMS \xce\x94p", NULL), 100 * ours->dp_rms, 100 * sigma + 0.0005);
    assert_near(number_of(output, "Same top p:", NULL), 100 * ours->same_top.mean,
                300.0 / (double)ours->n_tokens + 0.0005);
}

/* One context size: every type against the tool on the same windows. */
static void run_case(int32_t n_ctx, const char *const *types, size_t n_types)
{
    enum { MAX_TYPES = 3 };
    char arguments[2048], paths[MAX_TYPES][512], base_file[512], text[512];
    const char *candidates[MAX_TYPES] = {NULL}, *texts[] = {text};
    snprintf(base_file, sizeof base_file, "%s/base.kld", folder);
    snprintf(text, sizeof text, "%s", write_english("text.txt", (unsigned)n_ctx, 330));
    FILE *more = fopen(text, "ab"); /* what an escape-processing reader would change, and a last newline */
    assert_non_null(more);
    fputs("A literal \\n and \\t in C: printf(\"%d\\n\", n); the end.\n", more);
    fclose(more);
    assert_true(n_types <= MAX_TYPES);
    for (size_t i = 0; i < n_types; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s-%d.gguf", folder, types[i], n_ctx);
        candidates[i] = paths[i];
        write_quantized(strrchr(paths[i], '/') + 1, types[i]);
    }
    struct measure_options options = {.n_ctx = n_ctx, .n_threads = 1};
    struct measure_result result;
    struct allot_error err = {0};
    if (measure_run(&result, tiny_path, candidates, n_types, texts, 1, &options, NULL, &err) != ALLOT_OK)
        fail_msg("%s", err.message);

    snprintf(arguments, sizeof arguments,
             "-m '%s' -f '%s' --no-escape -c %d -b %d -t 1 --kl-divergence-base '%s'", tiny_path, text, n_ctx,
             n_ctx, base_file);
    free(perplexity(arguments, "Final estimate: PPL ="));
    struct text_vocab *vocab = NULL;
    struct text_windows windows = {0};
    if (text_vocab_open(&vocab, tiny_path, &err) != ALLOT_OK ||
        text_windows_from_files(&windows, vocab, texts, 1, n_ctx, 0, &err) != ALLOT_OK)
        fail_msg("%s", err.message);
    check_tokens(base_file, &windows);
    assert_int_equal(result.stats[0].n_windows, windows.n);
    text_windows_release(&windows);
    text_vocab_close(vocab);

    for (size_t i = 0; i < n_types; i++) {
        snprintf(arguments, sizeof arguments,
                 "-m '%s' -c %d -b %d -t 1 --kl-divergence --kl-divergence-base '%s'", candidates[i], n_ctx,
                 n_ctx, base_file);
        char *output = perplexity(arguments, "Same top p:");
        print_message("c=%d %s: KL %.6f, llama-perplexity %.6f\n", n_ctx, types[i],
                      result.stats[i * 2].kl.mean, number_of(output, "Mean    KLD", NULL));
        compare(&result.stats[i * 2], output);
        free(output);
    }
    measure_result_release(&result);
}

static void test_context_512(void **state)
{
    (void)state;
    static const char *const types[] = {"Q8_0", "Q4_K_M", "Q2_K"};
    run_case(512, types, 3);
}

static void test_context_128(void **state)
{
    (void)state;
    static const char *const types[] = {"Q3_K_S"};
    run_case(128, types, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_512),
        cmocka_unit_test(test_context_128),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
