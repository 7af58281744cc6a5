/* test_memory.c - memory limits of control groups, read from trees that look like real systems'.
 * SPDX-License-Identifier: MIT */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <cmocka.h>

#include "base/memory.h"

#define GIB (1ll << 30)
#define V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1 "36 25 0:31 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory\n"
#define OTHER                                \
    "22 28 0:20 / /proc rw - proc proc rw\n" \
    "35 25 0:30 / /sys/fs/cgroup/cpu rw shared:14 - cgroup cgroup rw,cpu,cpuacct\n"

static const struct {
    const char *what, *cgroup, *mountinfo;
    struct {
        const char *path, *text;
    } files[4];
    int64_t expected; /* of 64 GiB */
} rows[] = {
    {"no control groups", NULL, NULL, {{0}}, 64 * GIB},
    {"no limit", "0::/a\n", OTHER V2, {{"/sys/fs/cgroup/a/memory.max", "max\n"}}, 64 * GIB},
    {"the own group's", "0::/a\n", OTHER V2, {{"/sys/fs/cgroup/a/memory.max", "1073741824\n"}}, GIB},
    {"a group's above",
     "0::/a/b/c\n",
     V2,
     {{"/sys/fs/cgroup/a/b/c/memory.max", "max\n"}, {"/sys/fs/cgroup/a/memory.max", "2147483648\n"}},
     2 * GIB},
    {"the least of several",
     "0::/a/b/c\n",
     V2,
     {{"/sys/fs/cgroup/a/b/c/memory.max", "3221225472\n"},
      {"/sys/fs/cgroup/a/b/memory.max", "1073741824\n"},
      {"/sys/fs/cgroup/a/memory.max", "2147483648\n"}},
     GIB},
    {"another group's is not ours",
     "0::/a\n",
     V2,
     {{"/sys/fs/cgroup/ab/memory.max", "1\n"}, {"/sys/fs/cgroup/a/b/memory.max", "1\n"}},
     64 * GIB},
    {"more than the machine has",
     "0::/a\n",
     V2,
     {{"/sys/fs/cgroup/a/memory.max", "99999999999999\n"}},
     64 * GIB},
    {"a container with a namespace", "0::/\n", V2, {{"/sys/fs/cgroup/memory.max", "1073741824\n"}}, GIB},
    {"a container that knows its outer name",
     "0::/docker/f00/inner\n",
     "30 23 0:26 /docker/f00 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
     {{"/sys/fs/cgroup/memory.max", "2147483648\n"}, {"/sys/fs/cgroup/inner/memory.max", "1073741824\n"}},
     GIB},
    {"a group outside of what is mounted",
     "0::/docker/f0\n",
     "30 23 0:26 /docker/f00 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
     {{"/sys/fs/cgroup/memory.max", "2147483648\n"}},
     2 * GIB},
    {"version 1",
     "12:cpu,cpuacct:/x\n5:memory:/a/b\n0::/y\n",
     OTHER V1,
     {{"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
      {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n"},
      {"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n"},
      {"/sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "2\n"}},
     GIB},
    {"both versions",
     "3:memory,hugetlb:/a\n0::/b\n",
     V1 "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
     {{"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3221225472\n"},
      {"/sys/fs/cgroup/unified/b/memory.max", "2147483648\n"}},
     2 * GIB},
    {"a blank in the mount point",
     "0::/a\n",
     "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
     {{"/my groups/a/memory.max", "1073741824\n"}},
     GIB},
    {"lines that say nothing",
     "\n0\n0:\n0::/a",
     "\n - \n1 2 3 - cgroup2 x y\n1 2 3 4 5 6 - cgroup2\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 c rw",
     {{"/sys/fs/cgroup/a/memory.max", ""}, {"/sys/fs/cgroup/memory.max", "-5\n"}},
     64 * GIB},
};

static char folder[256];

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* Writes a file and the folders that lead to it. */
static void put(const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", folder, path);
    for (char *slash = full + strlen(folder); (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_systems(void **state)
{
    const char *tmp = getenv("TMPDIR");
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        snprintf(folder, sizeof folder, "%s/allot-memory-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(folder));
        if (rows[r].cgroup)
            put("/proc/self/cgroup", rows[r].cgroup);
        if (rows[r].mountinfo)
            put("/proc/self/mountinfo", rows[r].mountinfo);
        for (int i = 0; i < 4 && rows[r].files[i].path; i++)
            put(rows[r].files[i].path, rows[r].files[i].text);
        const int64_t got = memory_limit_below(folder, 64 * GIB);
        if (got != rows[r].expected)
            fail_msg("%s: %lld, expected %lld", rows[r].what, (long long)got, (long long)rows[r].expected);
        assert_int_equal(nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    }
}

static void test_this_system(void **state)
{
    struct sysinfo info;
    const int64_t limit = memory_limit();
    (void)state;
    assert_int_equal(sysinfo(&info), 0);
    assert_true(limit > 1 << 20);
    assert_true(limit <= (int64_t)(info.totalram * info.mem_unit));
    print_message("limit %lld of %lld bytes\n", (long long)limit, (long long)(info.totalram * info.mem_unit));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_systems), cmocka_unit_test(test_this_system)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
