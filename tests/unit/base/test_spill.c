/* test_spill.c - blocks in memory and in files: what they hold, what they cost, what they refuse.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/spill.h"

enum { N = 16 << 20 }; /* numbers of a block: 64 MiB */

static struct allot_error err;
static char folder[] = "spill-XXXXXX"; /* in the build's folder, which is seldom memory */

static int make_disk_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

/* Fails if anything is left in it. */
static int remove_disk_folder(void **state)
{
    (void)state;
    return remove(folder);
}

/* Bytes of mapped files that the process sees now. */
static int64_t file_pages(void)
{
    char line[256];
    long long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssFile: %lld kB", &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

static void fill(uint32_t *x, uint64_t seed)
{
    for (uint64_t i = 0; i < N; i++)
        x[i] = (uint32_t)rng_u64(seed, i);
}

static void check_filled(const uint32_t *x, uint64_t seed)
{
    for (uint64_t i = 0; i < N; i++)
        if (x[i] != (uint32_t)rng_u64(seed, i))
            fail_msg("number %zu is not what was written", (size_t)i);
}

static void test_in_memory(void **state)
{
    (void)state;
    struct spill block;
    const int64_t before = memory_own(), size = N * (int64_t)sizeof(uint32_t);
    assert_true(before > 0);
    assert_int_equal(spill_new(&block, (size_t)size, NULL, "numbers", &err), ALLOT_OK);
    for (size_t i = 0; i < N; i += 1000)
        assert_int_equal(((uint32_t *)block.data)[i], 0);
    fill(block.data, 1);
    assert_true(memory_own() - before > size * 9 / 10);
    spill_forget(&block, block.data, block.size);
    check_filled(block.data, 1);
    spill_release(&block);
    assert_null(block.data);
    assert_true(memory_own() - before < size / 10);
}

static void test_in_file(void **state)
{
    (void)state;
    struct spill block;
    const int64_t own = memory_own(), files = file_pages(), size = N * (int64_t)sizeof(uint32_t);
    assert_int_equal(spill_new(&block, (size_t)size, folder, "numbers", &err), ALLOT_OK);
    for (size_t i = 0; i < N; i += 1000)
        assert_int_equal(((uint32_t *)block.data)[i], 0);
    fill(block.data, 2);
    assert_true(memory_own() - own < size / 10);
    assert_true(file_pages() - files > size * 9 / 10);
    /* A half, from and to the middle of pages, then the rest. */
    spill_forget(&block, (uint8_t *)block.data + 1000, block.size / 2);
    assert_true(file_pages() - files < size * 6 / 10);
    check_filled(block.data, 2);
    spill_forget(&block, block.data, block.size);
    assert_true(file_pages() - files < size / 10);
    check_filled(block.data, 2);
    fill(block.data, 3);
    spill_forget(&block, block.data, block.size);
    check_filled(block.data, 3);
    spill_release(&block);
    spill_release(&block); /* again is nothing */
}

static void refused(size_t size, const char *where, const char *expected)
{
    struct spill block;
    assert_int_equal(spill_new(&block, size, where, "the numbers", &err), ALLOT_ERR_IO);
    print_message("%s\n", err.message);
    assert_null(block.data);
    assert_non_null(strstr(err.message, "the numbers"));
    assert_non_null(strstr(err.message, where));
    assert_non_null(strstr(err.message, expected));
}

static void test_refusals(void **state)
{
    (void)state;
    struct statfs fs;
    refused(4096, "no/such/folder", "No such file or directory");
    refused(4096, "/proc", "cannot make a temporary file"); /* not even root may */
    refused((size_t)1 << 60, folder, "free");
    if (statfs("/dev/shm", &fs) == 0 && fs.f_type == 0x01021994)
        refused(4096, "/dev/shm", "is memory too");
}

/* A limit on file size is a disk that is full at some byte. */
static void test_no_room(void **state)
{
    (void)state;
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    refused(2 << 20, folder, "cannot reserve");
    setrlimit(RLIMIT_FSIZE, &old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_memory),
        cmocka_unit_test(test_in_file),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, make_disk_folder, remove_disk_folder);
}
