/* check-dither.c - the test of dither. SPDX-License-Identifier: MIT
 *
 * usage: check-dither PATH-OF-DITHER
 *
 * Quantizes random rows to every type that dither knows, lets it make the reference, and reads that with
 * ggml's own reader. The oracle for the steps is not dither's trick: they are read from the blocks' scales.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "ggml.h"
#include "gguf.h"

enum { WIDTH = 512, ROWS = 24, N = WIDTH * ROWS };

static const enum ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                                       GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K};
enum { N_TYPES = sizeof types / sizeof *types };

static int failures;

static void expect(bool ok, const char *what, const char *where)
{
    if (ok)
        return;
    fprintf(stderr, "check-dither: %s: %s\n", where, what);
    failures++;
}

static float half_at(const uint8_t *p)
{
    ggml_fp16_t h;
    memcpy(&h, p, sizeof h);
    return ggml_fp16_to_fp32(h);
}

/* The 6-bit scale of the j-th of 8 sub-blocks, packed as in block_q4_K and block_q5_K. */
static int packed_scale(const uint8_t *s, int j)
{
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
}

static double step_of(enum ggml_type type, const uint8_t *block, int i)
{
    if (type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K)
        return fabs((double)half_at(block) * packed_scale(block + 4, i / 32));
    if (type == GGML_TYPE_Q6_K)
        return fabs((double)half_at(block + 208) * (int8_t)block[192 + i / 16]);
    return fabs((double)half_at(block));
}

static void write_quantized(const char *path, const float *weights)
{
    struct ggml_init_params params = {.mem_size = 16u << 20, .mem_buffer = NULL, .no_alloc = false};
    struct ggml_context *ctx = ggml_init(params);
    struct gguf_context *file = gguf_init_empty();
    gguf_set_val_str(file, "general.architecture", "probe");
    gguf_set_val_u32(file, "general.file_type", 3);
    struct ggml_tensor *norm = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, WIDTH);
    ggml_set_name(norm, "norm.weight");
    memcpy(norm->data, weights, WIDTH * sizeof(float));
    gguf_add_tensor(file, norm);
    for (int t = 0; t < N_TYPES; t++) {
        struct ggml_tensor *tensor = ggml_new_tensor_2d(ctx, types[t], WIDTH, ROWS);
        ggml_format_name(tensor, "blk.0.%s.weight", ggml_type_name(types[t]));
        ggml_quantize_chunk(types[t], weights, tensor->data, 0, ROWS, WIDTH, NULL);
        gguf_add_tensor(file, tensor);
    }
    expect(gguf_write_to_file(file, path, false), "cannot write", path);
    gguf_free(file);
    ggml_free(ctx);
}

static int run_dither(const char *program, const char *in, const char *out, const char *seed)
{
    pid_t child = fork();
    int status = -1;
    if (child == 0) {
        execl(program, program, in, out, seed, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

struct file {
    struct ggml_context *ctx;
    struct gguf_context *gguf;
};

static struct file read_file(const char *path)
{
    struct file f = {0};
    struct gguf_init_params params = {.no_alloc = false, .ctx = &f.ctx};
    f.gguf = gguf_init_from_file(path, params);
    if (!f.gguf) {
        fprintf(stderr, "check-dither: ggml cannot read %s\n", path);
        exit(1);
    }
    return f;
}

static void free_file(struct file f)
{
    gguf_free(f.gguf);
    ggml_free(f.ctx);
}

/* Every value within half a step (and BF16's rounding) of the quantized one; the distances spread evenly
 * over the step (mean of |u| for uniform u in -1/2..1/2 is 1/4); their mean is 0. */
static void check_tensor(const struct ggml_tensor *quantized, const struct ggml_tensor *made)
{
    const char *name = quantized->name;
    static float was[N], is[N];
    expect(made && made->type == GGML_TYPE_BF16, "is not BF16", name);
    if (!made)
        return;
    ggml_get_type_traits(quantized->type)->to_float(quantized->data, was, N);
    ggml_bf16_to_fp32_row(made->data, is, N);
    int64_t block = ggml_blck_size(quantized->type), n = 0, outside = 0;
    double sum = 0, sum_abs = 0;
    for (int64_t i = 0; i < N; i++) {
        const uint8_t *bytes =
            (const uint8_t *)quantized->data + i / block * (int64_t)ggml_type_size(quantized->type);
        double step = step_of(quantized->type, bytes, (int)(i % block)),
               moved = (double)is[i] - (double)was[i];
        double rounding = fabs((double)is[i]) / 256 + 1e-7 * fabs((double)was[i]);
        outside += fabs(moved) > step * 0.5 * (1 + 1e-4) + rounding;
        if (step > 0) {
            sum += moved / step;
            sum_abs += fabs(moved / step);
            n++;
        }
    }
    expect(outside == 0, "values lie more than half a step away", name);
    expect(n > N / 2, "most steps are zero", name);
    expect(fabs(sum / (double)n) < 0.02, "the draws are not centred", name);
    expect(fabs(sum_abs / (double)n - 0.25) < 0.02, "the draws are not uniform over the step", name);
}

static bool same_bytes(const char *a, const char *b)
{
    struct allot_error err;
    struct file_map x = {0}, y = {0};
    bool same = !file_map_open(&x, a, &err) && !file_map_open(&y, b, &err) && x.size == y.size &&
                memcmp(x.data, y.data, x.size) == 0;
    file_map_close(&x);
    file_map_close(&y);
    return same;
}

static void check_file(const char *quantized_path, const char *made_path)
{
    struct file quantized = read_file(quantized_path), made = read_file(made_path);
    for (int t = 0; t < N_TYPES; t++) {
        char name[GGML_MAX_NAME];
        snprintf(name, sizeof name, "blk.0.%s.weight", ggml_type_name(types[t]));
        check_tensor(ggml_get_tensor(quantized.ctx, name), ggml_get_tensor(made.ctx, name));
    }
    const struct ggml_tensor *norm = ggml_get_tensor(made.ctx, "norm.weight");
    expect(
        norm && norm->type == GGML_TYPE_F32 &&
            !memcmp(norm->data, ggml_get_tensor(quantized.ctx, "norm.weight")->data, WIDTH * sizeof(float)),
        "a vector changed", "norm.weight");
    int64_t key = gguf_find_key(made.gguf, "general.file_type");
    expect(key >= 0 && gguf_get_val_u32(made.gguf, key) == 32, "is not 32 (BF16)", "general.file_type");
    expect(gguf_get_n_tensors(made.gguf) == N_TYPES + 1, "wrong number of tensors", made_path);
    free_file(quantized);
    free_file(made);
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    char folder[512], quantized[600], a[600], b[600], c[600];
    snprintf(folder, sizeof folder, "%s/dither-XXXXXX", base && *base ? base : "/tmp");
    if (argc != 2 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: check-dither PATH-OF-DITHER (and a writable $TMPDIR)\n");
        return 2;
    }
    snprintf(quantized, sizeof quantized, "%s/quantized.gguf", folder);
    snprintf(a, sizeof a, "%s/a.gguf", folder);
    snprintf(b, sizeof b, "%s/b.gguf", folder);
    snprintf(c, sizeof c, "%s/c.gguf", folder);

    static float weights[N];
    for (uint64_t i = 0; i < N; i++)
        weights[i] = (float)(rng_normal(7, i) * 0.05);
    write_quantized(quantized, weights);
    expect(run_dither(argv[1], quantized, a, "11") == 0, "failed", "dither");
    expect(run_dither(argv[1], quantized, b, "11") == 0, "failed", "dither");
    expect(run_dither(argv[1], quantized, c, "12") == 0, "failed", "dither");
    expect(run_dither(argv[1], quantized, quantized, "12") == 1, "overwrote its input", "dither");
    expect(run_dither(argv[1], "absent.gguf", c, "x") == 2, "took a bad seed", "dither");
    expect(same_bytes(a, b), "the same seed gave other bytes", "dither");
    expect(!same_bytes(a, c), "another seed gave the same bytes", "dither");
    if (!failures)
        check_file(quantized, a);
    unlink(quantized);
    unlink(a);
    unlink(b);
    unlink(c);
    rmdir(folder);
    printf("%d types, %d weights each: %s\n", N_TYPES, N, failures ? "FAILED" : "ok");
    return failures != 0;
}
