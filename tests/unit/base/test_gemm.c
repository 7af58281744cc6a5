/* test_gemm.c - the factor of an inverse against the definition.  SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/gemm.h"
#include "base/rng.h"

static const char *chosen; /* by the user */

/* u' u a = 1, u upper triangular with a positive diagonal. */
static void check_factor(int64_t n, uint64_t seed)
{
    float *x = malloc(sizeof *x * (size_t)(2 * n * n)), *a = malloc(sizeof *a * (size_t)(n * n)),
          *u = malloc(sizeof *u * (size_t)(n * n));
    assert_true(x && a && u);
    for (int64_t i = 0; i < 2 * n * n; i++)
        x[i] = (float)rng_normal(seed, (uint64_t)i);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            double sum = i == k ? 0.1 : 0;
            for (int64_t t = 0; t < 2 * n; t++)
                sum += (double)x[t * n + i] * x[t * n + k] / (double)(2 * n);
            u[i * n + k] = a[i * n + k] = (float)sum;
        }
    assert_true(gemm_inverse_factor(u, n));
    for (int64_t i = 0; i < n; i++) {
        assert_true(u[i * n + i] > 0);
        for (int64_t k = 0; k < i; k++)
            assert_true(u[i * n + k] == 0);
    }
    float *ua = malloc(sizeof *ua * (size_t)(n * n)); /* u a */
    assert_non_null(ua);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            double sum = 0;
            for (int64_t l = i; l < n; l++)
                sum += (double)u[i * n + l] * a[l * n + k];
            ua[i * n + k] = (float)sum;
        }
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++) {
            double sum = 0;
            for (int64_t l = 0; l <= i; l++)
                sum += (double)u[l * n + i] * ua[l * n + k];
            assert_true(fabs(sum - (i == k)) < 1e-4);
        }
    free(x);
    free(a);
    free(u);
    free(ua);
}

static void test_inverse_factor(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 9; n++)
        check_factor(n, (uint64_t)n);
    check_factor(65, 3);
    check_factor(200, 4);
}

static void test_indefinite(void **state)
{
    (void)state;
    float a[4] = {1, 2, 2, 1};
    assert_false(gemm_inverse_factor(a, 2));
    float zero[1] = {0};
    assert_false(gemm_inverse_factor(zero, 1));
}

/* OpenBLAS by itself takes its oldest kernels where the processor is newer than it is. */
static void test_wide_kernels(void **state)
{
    (void)state;
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(library);
    char *(*name)(void) = NULL;
    void *address = dlsym(library, "openblas_get_corename");
    memcpy(&name, &address, sizeof name);
    print_message("kernels of OpenBLAS: %s\n", name());
    if (chosen)
        assert_string_equal(name(), chosen);
#if defined(__x86_64__)
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        assert_string_not_equal(name(), "Prescott");
#endif
    dlclose(library);
}

static int set_up(void **state)
{
    struct allot_error err;
    (void)state;
    chosen = getenv("OPENBLAS_CORETYPE"); /* before gemm_init may set it */
    chosen = chosen ? strdup(chosen) : NULL;
    return gemm_init(&err) != ALLOT_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inverse_factor),
        cmocka_unit_test(test_indefinite),
        cmocka_unit_test(test_wide_kernels),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
