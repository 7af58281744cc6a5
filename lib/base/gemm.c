/* gemm.c - float32 matrix products on OpenBLAS, shared out over a pool.  SPDX-License-Identifier: MIT */
#include "base/gemm.h"

#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/num.h"
#include "base/rng.h"

/* The larger a tile, the nearer OpenBLAS comes to its rate; but there should be enough of them to keep the
 * threads evenly busy. */
enum { MAX_TILE = 2048, MIN_TILE_M = 512, MIN_TILE_N = 1024, ENOUGH_TILES = 16 };

/* OpenBLAS, loaded when products are first wanted: when it is loaded it starts threads and takes memory, and
 * it waits for ever where memory is limited and it gets none. Programs without products do without it. */
static struct {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(openblas_set_num_threads) *set_num_threads;
    __typeof__(openblas_get_corename) *get_corename;
    /* LAPACK as Fortran has it: columns one after the other, the lengths of strings behind all else. */
    void (*spotrf)(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t);
    void (*strtri)(const char *uplo, const char *diag, const int *n, float *a, const int *lda, int *info,
                   size_t, size_t);
    struct allot_error err; /* why it could not be loaded */
} blas;

static const char blas_library[] = "libopenblas.so.0";
enum { BLAS_BYTES = 256 << 20 }; /* address space for it: its code, and 32 MiB for each of a few threads */

static bool find_function(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static void *open_blas(void)
{
    void *library = dlopen(blas_library, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL && find_function(library, "cblas_sgemm", &blas.sgemm) &&
        find_function(library, "openblas_set_num_threads", &blas.set_num_threads) &&
        find_function(library, "openblas_get_corename", &blas.get_corename) &&
        find_function(library, "spotrf_", &blas.spotrf) && find_function(library, "strtri_", &blas.strtri))
        return library;
    const char *cause = dlerror();
    allot_fail(&blas.err, ALLOT_ERR_UNSUPPORTED, "OpenBLAS cannot be loaded: %s",
               cause != NULL ? cause : blas_library);
    return NULL;
}

/* What OPENBLAS_CORETYPE would have to be: on processors newer than itself OpenBLAS takes its oldest kernels,
 * which are many times slower than those that the processor can run. NULL: it has found its way. */
static const char *better_kernels(void)
{
#if defined(__x86_64__)
    static const char *const wide[] = {"Haswell", "Zen", "Excavator", "SkylakeX", "Cooperlake", "Sapphire"};
    const char *own = blas.get_corename();
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (strncasecmp(own, wide[i], strlen(wide[i])) == 0)
            return NULL;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return NULL;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? "SkylakeX"
               : "Haswell";
#else
    return NULL;
#endif
}

static void load_blas(void)
{
    void *space =
        mmap(NULL, BLAS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        allot_fail_memory(&blas.err, BLAS_BYTES, "OpenBLAS");
        return;
    }
    munmap(space, BLAS_BYTES);
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* it starts none of its own */
    void *library = open_blas();
    const char *kernels = library != NULL ? better_kernels() : NULL;
    if (kernels != NULL && getenv("OPENBLAS_CORETYPE") == NULL) {
        dlclose(library); /* it chooses when it is loaded */
        setenv("OPENBLAS_CORETYPE", kernels, 1);
        open_blas();
    }
}

void gemm_strided(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    blas.sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
               transpose_b ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

struct product {
    const float *a, *b;
    float *c;
    int64_t m, n, k; /* c is (m,n), k is summed over */
    bool transpose_b;
    float beta;
    int64_t tile_m, tile_n, tiles_n;
};

static void product_tile(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct product *p = user;
    int64_t m0 = item / p->tiles_n * p->tile_m, n0 = item % p->tiles_n * p->tile_n;
    int64_t m = least(p->tile_m, p->m - m0), n = least(p->tile_n, p->n - n0);
    const float *b = p->transpose_b ? p->b + n0 * p->k : p->b + n0;
    gemm_strided(false, p->transpose_b, (int)m, (int)n, (int)p->k, 1.0f, p->a + m0 * p->k, (int)p->k, b,
                 (int)(p->transpose_b ? p->k : p->n), p->beta, p->c + m0 * p->n + n0, (int)p->n);
}

/* n cut into the fewest equal pieces of at most `size`: the length of a piece. */
static int64_t even_piece(int64_t n, int64_t size)
{
    return parts_of(parts_of(n, parts_of(n, size)), 16) * 16;
}

static void product_run(struct pool *pool, struct product *p)
{
    int64_t m = MAX_TILE, n = MAX_TILE;
    while (parts_of(p->m, m) * parts_of(p->n, n) < ENOUGH_TILES && m > MIN_TILE_M)
        m /= 2;
    while (parts_of(p->m, m) * parts_of(p->n, n) < ENOUGH_TILES && n > MIN_TILE_N)
        n /= 2;
    p->tile_m = even_piece(p->m, m);
    p->tile_n = even_piece(p->n, n);
    p->tiles_n = parts_of(p->n, p->tile_n);
    pool_run(pool, p->tiles_n * parts_of(p->m, p->tile_m), product_tile, p);
}

void gemm_forward(struct pool *pool, float *y, const float *x, const float *w, int64_t m, int64_t n,
                  int64_t k)
{
    struct product p = {.a = x, .b = w, .c = y, .m = m, .n = n, .k = k, .transpose_b = true};
    product_run(pool, &p);
}

void gemm_backward(struct pool *pool, float *dx, const float *dy, const float *w, int64_t m, int64_t n,
                   int64_t k, bool accumulate)
{
    struct product p = {.a = dy, .b = w, .c = dx, .m = m, .n = k, .k = n, .beta = accumulate ? 1.0f : 0.0f};
    product_run(pool, &p);
}

void gemm_forward_here(float *y, const float *x, const float *w, int64_t m, int64_t n, int64_t k)
{
    gemm_strided(false, true, (int)m, (int)n, (int)k, 1.0f, x, (int)k, w, (int)k, 0.0f, y, (int)n);
}

static void reverse(float *a, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        const float x = a[i];
        a[i] = a[n - 1 - i];
        a[n - 1 - i] = x;
    }
}

/* With J the reversal of the order, J A J = L L', so A = (J L J)(J L J)', and J L J is upper triangular:
 * U = (J L J)^-1 = J L^-1 J. What Fortran calls upper is lower row by row. */
bool gemm_inverse_factor(float *a, int64_t n)
{
    const int order = (int)n;
    int info;
    reverse(a, (size_t)(n * n));
    blas.spotrf("U", &order, a, &order, &info, 1);
    if (info == 0)
        blas.strtri("U", "N", &order, a, &order, &info, 1, 1);
    if (info != 0)
        return false;
    for (int64_t i = 0; i < n; i++)
        memset(a + i * n + i + 1, 0, sizeof(float) * (size_t)(n - i - 1));
    reverse(a, (size_t)(n * n));
    return true;
}

/* Largest difference between OpenBLAS and a plain loop, relative to the size of the terms. */
static double product_error(bool transpose_a, bool transpose_b, int m, int n, int k, float *buffer)
{
    float *a = buffer, *b = a + (size_t)m * (size_t)k, *c = b + (size_t)k * (size_t)n;
    for (int i = 0; i < m * k + k * n; i++)
        buffer[i] = (float)rng_uniform(7, (uint64_t)i) - 0.5f;
    gemm_strided(transpose_a, transpose_b, m, n, k, 1.0f, a, transpose_a ? m : k, b, transpose_b ? k : n,
                 0.0f, c, n);
    double worst = 0;
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum +=
                    (double)a[transpose_a ? l * m + i : i * k + l] * b[transpose_b ? j * k + l : l * n + j];
            double error = fabs(sum - c[i * n + j]);
            if (!(error <= worst)) /* catches NaN too */
                worst = error;
        }
    }
    return worst / sqrt((double)k);
}

allot_status gemm_init(struct allot_error *err)
{
    static atomic_bool checked;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_blas);
    if (blas.err.status != ALLOT_OK) {
        *err = blas.err;
        return err->status;
    }
    blas.set_num_threads(1);
    if (atomic_load(&checked))
        return ALLOT_OK;
    static const int shapes[][3] = {{67, 131, 259}, {16, 576, 16}, {300, 33, 64}, {1, 19, 1000}};
    float *buffer = malloc(sizeof(float) * 200000);
    if (buffer == NULL)
        return allot_fail_memory(err, sizeof(float) * 200000, "the check of OpenBLAS");
    double worst = 0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int kind = 0; kind < 3; kind++) {
            double e = product_error(kind == 2, kind == 1, shapes[i][0], shapes[i][1], shapes[i][2], buffer);
            if (!(e <= worst))
                worst = e;
        }
    }
    free(buffer);
    if (!(worst < 1e-5))
        return allot_fail(err, ALLOT_ERR_INTERNAL,
                          "OpenBLAS (%s) computes wrong products on this processor (error %.2g); set "
                          "OPENBLAS_CORETYPE=Haswell in the environment or install another BLAS",
                          blas.get_corename(), worst);
    atomic_store(&checked, true);
    return ALLOT_OK;
}
