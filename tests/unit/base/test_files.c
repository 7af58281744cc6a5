/* test_files.c - outputs appear whole or not at all; errors name path and cause.
 * SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"

static char folder[256];

/* "folder/name", valid until the fourth next call. */
static const char *in_folder(const char *name)
{
    static char paths[4][512];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_holds(const char *path, const char *text)
{
    char got[256] = "";
    FILE *file = fopen(path, "rb");

    if (!file)
        fail_msg("%s is missing", path);
    (void)!fread(got, 1, sizeof got - 1, file);
    fclose(file);
    assert_string_equal(got, text);
}

static int count_entries(void)
{
    DIR *dir = opendir(folder);
    int n = 0;

    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static int make_folder(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(folder, sizeof folder,
             "%s/allot-\xc5\xbd"
             "elj ko-XXXXXX",
             tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[600];
    DIR *dir = opendir(folder);

    (void)state;
    if (!dir)
        return -1;
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            remove(path);
        }
    closedir(dir);
    return rmdir(folder);
}

/* ---- Output ------------------------------------------------------------------------------------- */

static void test_replaced_whole(void **state)
{
    const char *path = in_folder("out");
    struct file_output out;
    struct allot_error err;
    struct stat st;
    mode_t mask = umask(027);

    (void)state;
    assert_int_equal(file_write_all(path, "fresh", 5, &err), ALLOT_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640); /* as any new file, not as a private temporary */
    umask(mask);

    assert_int_equal(chmod(path, 0604), 0);
    assert_int_equal(file_output_open(&out, path, &err), ALLOT_OK);
    assert_int_equal(file_output_write(&out, "new", 3, &err), ALLOT_OK);
    assert_holds(path, "fresh"); /* until committed */
    assert_int_equal(count_entries(), 2);
    assert_int_equal(file_output_write(&out, "er", 2, &err), ALLOT_OK);
    assert_int_equal(file_output_commit(&out, &err), ALLOT_OK);
    assert_holds(path, "newer");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0604);

    assert_int_equal(file_output_open(&out, path, &err), ALLOT_OK);
    assert_int_equal(file_output_write(&out, "never", 5, &err), ALLOT_OK);
    file_output_abandon(&out);
    file_output_abandon(&out); /* a no-op */
    assert_holds(path, "newer");
    assert_int_equal(count_entries(), 1);
    unlink(path);
}

static void test_links(void **state)
{
    const char *target = in_folder("target"), *link = in_folder("link");
    struct allot_error err;
    struct stat st;

    (void)state;
    put(target, "old");
    assert_int_equal(symlink("target", link), 0);
    assert_true(file_same(target, link));
    assert_int_equal(file_write_all(link, "new", 3, &err), ALLOT_OK);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode)); /* goes on pointing at its target, */
    assert_holds(target, "new");      /* which was replaced */
    unlink(link);
    assert_false(file_same(target, link));
    assert_int_equal(linkat(AT_FDCWD, target, AT_FDCWD, link, 0), 0);
    assert_true(file_same(target, link));
    unlink(target);
    unlink(link);
}

static void test_refused_targets(void **state)
{
    char long_name[800];
    const struct {
        const char *path, *message;
    } rows[] = {
        {"/absent-folder/x/out", "folder /absent-folder/x: no such folder"},
        {in_folder("file/out"), "file"}, /* a component is a file */
        {folder, "it is a folder"},
        {"/dev/null", "not a regular file"},
        {"/proc/allot-out", "folder /proc"},
        {"", "empty"},
        {long_name, "File name too long"},
    };
    char saved[512];

    (void)state;
    snprintf(long_name, sizeof long_name, "%s/%0400d", folder, 1);
    snprintf(saved, sizeof saved, "%s", rows[1].path);
    put(in_folder("file"), "x");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const char *path = r == 1 ? saved : rows[r].path;
        struct allot_error err = {0};
        allot_status status = file_write_all(path, "x", 1, &err);

        if (status == ALLOT_OK || !strstr(err.message, rows[r].message))
            fail_msg("row %zu: status %d: %s", r, status, err.message);
    }
    assert_int_equal(count_entries(), 1);
    unlink(in_folder("file"));
}

/* A limit on file size stands in for a full disk; a real one reports ENOSPC by the same path. */
static void test_write_fails(void **state)
{
    static char big[100000];
    const char *path = in_folder("out");
    struct rlimit old, small;
    struct file_output out;
    struct allot_error err = {0};
    allot_status status;

    (void)state;
    put(path, "old");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){50000, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    status = file_write_all(path, big, sizeof big, &err);
    if (status == ALLOT_ERR_IO)
        status = file_output_open(&out, path, &err) ? ALLOT_OK : ALLOT_ERR_IO;
    if (status == ALLOT_ERR_IO) {
        status = file_pwrite_all(out.fd, big, sizeof big, 10, path, &err);
        file_output_abandon(&out);
    }
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "File too large"));
    assert_holds(path, "old");
    assert_int_equal(count_entries(), 1);
    unlink(path);
}

/* /dev/full exists for this. */
static void test_no_space(void **state)
{
    struct allot_error err;
    int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

    (void)state;
    if (fd < 0)
        skip();
    assert_int_equal(file_pwrite_all(fd, "x", 1, 0, "the/file", &err), ALLOT_ERR_IO);
    close(fd);
    assert_non_null(strstr(err.message, "the/file: no space left"));
}

static void wait_for_byte(int fd)
{
    char byte;

    assert_int_equal(read(fd, &byte, 1), 1);
}

/* Killed between write and commit: the target is what it was. */
static void test_killed(void **state)
{
    const char *path = in_folder("out");
    int ready[2], status;
    pid_t child;

    (void)state;
    put(path, "old");
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        struct file_output out;
        struct allot_error err;

        if (file_output_open(&out, path, &err) || file_output_write(&out, "new", 3, &err))
            _exit(1);
        (void)!write(ready[1], "x", 1);
        pause();
        _exit(1);
    }
    wait_for_byte(ready[0]);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    close(ready[0]);
    close(ready[1]);
    assert_true(WIFSIGNALED(status));
    assert_holds(path, "old");
    assert_int_equal(count_entries(), 2); /* nobody could remove the temporary */
    remove_folder(NULL);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void remove_and_exit(int number)
{
    file_remove_temporaries();
    _exit(128 + number);
}

/* Interrupted politely: the signal handler leaves nothing behind. */
static void test_interrupted(void **state)
{
    const char *path = in_folder("out");
    int status;
    pid_t child;

    (void)state;
    put(path, "old");
    child = fork();
    if (child == 0) {
        struct file_output out[3];
        struct allot_error err;

        signal(SIGINT, remove_and_exit);
        for (int i = 0; i < 3; i++)
            if (file_output_open(&out[i], path, &err) || file_output_write(&out[i], "new", 3, &err))
                _exit(1);
        file_output_abandon(&out[1]);
        raise(SIGINT);
        _exit(1);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 130);
    assert_holds(path, "old");
    assert_int_equal(count_entries(), 1);
    unlink(path);
}

static void test_many_outputs(void **state)
{
    struct file_output out[70];
    struct allot_error err = {0};
    int n = 0;

    (void)state;
    while (n < 70 && file_output_open(&out[n], in_folder("out"), &err) == ALLOT_OK)
        n++;
    assert_true(n >= 16 && n < 70);
    assert_non_null(strstr(err.message, "outputs are open"));
    assert_int_equal(count_entries(), n);
    for (int i = 0; i < n; i++)
        file_output_abandon(&out[i]);
    assert_int_equal(count_entries(), 0);
}

/* ---- Input -------------------------------------------------------------------------------------- */

static void test_map(void **state)
{
    const char *path = in_folder("in"), *empty = in_folder("empty"), *fifo = in_folder("fifo");
    struct file_map map = {0};
    struct allot_error err;

    (void)state;
    put(path, "some bytes");
    put(empty, "");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(file_map_open(&map, path, &err), ALLOT_OK);
    assert_int_equal(map.size, 10);
    assert_memory_equal(map.data, "some bytes", 10);
    assert_string_equal(map.path, path);
    file_map_close(&map);
    file_map_close(&map);
    assert_int_equal(file_map_open(&map, empty, &err), ALLOT_OK);
    assert_true(map.size == 0 && !map.data);
    file_map_close(&map);
    assert_int_equal(file_map_open(&map, in_folder("absent"), &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "absent: no such file"));
    assert_int_equal(file_map_open(&map, folder, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "it is a folder"));
    assert_int_equal(file_map_open(&map, fifo, &err), ALLOT_ERR_IO); /* and does not wait for a writer */
    assert_non_null(strstr(err.message, "not a regular file"));
    unlink(path);
    unlink(empty);
    unlink(fifo);
}

static void test_folders(void **state)
{
    static const char *const rows[][2] = {
        {"a", "."}, {"a/b", "a"}, {"/a", "/"}, {"a/b/c", "a/b"}, {"./a", "."}, {"a/", "a"}, {"", "."},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char *got = file_folder(rows[r][0]);

        assert_string_equal(got, rows[r][1]);
        free(got);
    }
}

static void test_identity(void **state)
{
    const char *path = in_folder("in");
    const struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1700000000, .tv_nsec = 123456789}};
    struct file_identity a, b;
    struct allot_error err;

    (void)state;
    put(path, "abc");
    assert_int_equal(file_identify(&a, path, &err), ALLOT_OK);
    assert_int_equal(a.size, 3);
    assert_int_equal(file_identify(&b, path, &err), ALLOT_OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
    assert_int_equal(file_identify(&b, path, &err), ALLOT_OK);
    assert_int_equal(b.mtime_ns, 1700000000123456789);
    assert_int_equal(b.inode, a.inode);
    assert_int_equal(file_identify(&b, folder, &err), ALLOT_ERR_IO);
    assert_int_equal(file_identify(&b, in_folder("absent"), &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "no such file"));
    unlink(path);
}

static void test_space(void **state)
{
    struct allot_error err;

    (void)state;
    assert_int_equal(file_require_space(in_folder("out"), 1, &err), ALLOT_OK);
    assert_int_equal(file_require_space(in_folder("out"), -1, &err), ALLOT_OK);
    assert_int_equal(file_require_space(in_folder("out"), INT64_MAX, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "it needs 9.2 EB"));
    assert_non_null(strstr(err.message, "free"));
    assert_int_equal(file_require_space("/absent-folder/out", 1, &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "no such folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replaced_whole),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_refused_targets),
        cmocka_unit_test(test_write_fails),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_many_outputs),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_space),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
