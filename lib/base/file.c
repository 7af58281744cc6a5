/* file.c - files that appear whole or not at all, and facts about paths.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/strbuf.h"

/* Temporary files of open outputs, for the signal handler. Whoever exchanges a path out of its slot
 * owns it: the handler unlinks it (and never frees), the output unlinks and frees it. */
enum { MAX_OUTPUTS = 64 };
static _Atomic(char *) live_temporaries[MAX_OUTPUTS];

static bool register_temporary(char *path)
{
    for (int i = 0; i < MAX_OUTPUTS; i++) {
        char *expected = NULL;

        if (atomic_compare_exchange_strong(&live_temporaries[i], &expected, path))
            return true;
    }
    return false;
}

static bool unregister_temporary(char *path)
{
    for (int i = 0; i < MAX_OUTPUTS; i++) {
        char *expected = path;

        if (atomic_compare_exchange_strong(&live_temporaries[i], &expected, NULL))
            return true;
    }
    return false;
}

void file_remove_temporaries(void)
{
    int saved = errno;

    for (int i = 0; i < MAX_OUTPUTS; i++) {
        char *path = atomic_exchange(&live_temporaries[i], NULL);

        if (path)
            unlink(path);
    }
    errno = saved;
}

const char *file_cause(void)
{
    return errno == ENOSPC ? "no space left on the device" : strerror(errno);
}

char *file_folder(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static allot_status check_folder(const char *folder, const char *path, struct allot_error *err)
{
    struct stat st;

    if (stat(folder, &st) != 0)
        return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: folder %s: %s", path, folder,
                          errno == ENOENT ? "no such folder" : file_cause());
    if (!S_ISDIR(st.st_mode))
        return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: %s is not a folder", path, folder);
    return ALLOT_OK;
}

allot_status file_resolve_target(char **resolved, char **folder, const char *path, struct allot_error *err)
{
    struct stat st;
    char *target = NULL, *its_folder = NULL;
    allot_status status;

    if (path[0] == '\0')
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "the output path is empty");
    if (stat(path, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: it is %s", path,
                              S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
        target = realpath(path, NULL);
    }
    if (!target)
        target = strdup(path);
    its_folder = target ? file_folder(target) : NULL;
    if (!its_folder) {
        status = allot_fail_memory(err, strlen(path) + 1, "a path");
        goto failed;
    }
    status = check_folder(its_folder, path, err);
    if (status)
        goto failed;
    *resolved = target;
    if (folder)
        *folder = its_folder;
    else
        free(its_folder);
    return ALLOT_OK;
failed:
    free(target);
    free(its_folder);
    return status;
}

/* Creates a file of a new name in the folder (mode as for any new file, unlike mkstemp's). */
static int create_temporary(const char *folder, char **temp_path)
{
    static atomic_uint counter;
    char *path = NULL;
    int fd = -1;

    for (int attempt = 0; attempt < 1000; attempt++) {
        unsigned n = atomic_fetch_add(&counter, 1);

        if (asprintf(&path, "%s/.allot-%ld-%u.tmp", folder, (long)getpid(), n) < 0) {
            errno = ENOMEM;
            return -1;
        }
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *temp_path = path;
            return fd;
        }
        free(path);
        if (errno != EEXIST)
            return -1;
    }
    return -1;
}

allot_status file_output_open(struct file_output *out, const char *path, struct allot_error *err)
{
    struct file_output o = {.fd = -1};
    char *folder = NULL;
    allot_status status;

    status = file_resolve_target(&o.path, &folder, path, err);
    if (status)
        return status;
    o.fd = create_temporary(folder, &o.temp_path);
    if (o.fd < 0) {
        status = allot_fail(err, ALLOT_ERR_IO, "cannot write %s: folder %s: %s", path, folder, file_cause());
        goto cleanup;
    }
    if (!register_temporary(o.temp_path)) {
        unlink(o.temp_path);
        status = allot_fail(err, ALLOT_ERR_INTERNAL, "cannot write %s: %d outputs are open already", path,
                            MAX_OUTPUTS);
        close(o.fd);
        free(o.temp_path);
        goto cleanup;
    }
    *out = o;
    o.path = NULL;
cleanup:
    free(folder);
    free(o.path);
    return status;
}

allot_status file_output_write(struct file_output *out, const void *bytes, size_t n, struct allot_error *err)
{
    const char *p = bytes;

    while (n > 0) {
        ssize_t done = write(out->fd, p, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: %s", out->path, file_cause());
        p += done;
        n -= (size_t)done;
    }
    return ALLOT_OK;
}

/* Makes a rename survive a power cut. File systems that cannot sync a folder do without. */
static void sync_folder_of(const char *path)
{
    char *folder = file_folder(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* Frees what the output holds, after the temporary file is renamed or to be removed. */
static void forget_output(struct file_output *out)
{
    /* If a signal handler took the path it may still be using it. */
    if (unregister_temporary(out->temp_path))
        free(out->temp_path);
    free(out->path);
    *out = (struct file_output){.fd = -1};
}

bool file_replace(int fd, const char *path, const char *target)
{
    struct stat st;

    if (stat(target, &st) == 0)
        (void)!fchmod(fd, st.st_mode & 07777);
    if (rename(path, target) != 0)
        return false;
    sync_folder_of(target);
    return true;
}

allot_status file_output_commit(struct file_output *out, struct allot_error *err)
{
    if (fsync(out->fd) != 0 || !file_replace(out->fd, out->temp_path, out->path)) {
        allot_fail(err, ALLOT_ERR_IO, "cannot write %s: %s", out->path, file_cause());
        file_output_abandon(out);
        return ALLOT_ERR_IO;
    }
    close(out->fd);
    forget_output(out);
    return ALLOT_OK;
}

void file_output_abandon(struct file_output *out)
{
    if (!out->temp_path)
        return;
    if (out->fd >= 0)
        close(out->fd);
    unlink(out->temp_path);
    forget_output(out);
}

allot_status file_write_all(const char *path, const void *bytes, size_t n, struct allot_error *err)
{
    struct file_output out;
    allot_status status = file_output_open(&out, path, err);

    if (status)
        return status;
    status = file_output_write(&out, bytes, n, err);
    if (status) {
        file_output_abandon(&out);
        return status;
    }
    return file_output_commit(&out, err);
}

allot_status file_pwrite_all(int fd, const void *bytes, size_t n, int64_t offset, const char *path,
                             struct allot_error *err)
{
    const char *p = bytes;

    while (n > 0) {
        ssize_t done = pwrite(fd, p, n, (off_t)offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: %s", path, file_cause());
        p += done;
        n -= (size_t)done;
        offset += done;
    }
    return ALLOT_OK;
}

/* Opens a regular file for reading (never blocks on a pipe). */
static allot_status open_regular(int *out, struct stat *st, const char *path, struct allot_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return allot_fail(err, ALLOT_ERR_IO, "cannot read %s: %s", path,
                          errno == ENOENT ? "no such file" : file_cause());
    if (fstat(fd, st) != 0)
        allot_fail(err, ALLOT_ERR_IO, "cannot read %s: %s", path, file_cause());
    else if (S_ISDIR(st->st_mode))
        allot_fail(err, ALLOT_ERR_IO, "cannot read %s: it is a folder", path);
    else if (!S_ISREG(st->st_mode))
        allot_fail(err, ALLOT_ERR_IO, "cannot read %s: it is not a regular file", path);
    else {
        *out = fd;
        return ALLOT_OK;
    }
    close(fd);
    return ALLOT_ERR_IO;
}

allot_status file_map_open(struct file_map *map, const char *path, struct allot_error *err)
{
    struct file_map m = {0};
    struct stat st;
    void *data = NULL;
    int fd = -1;
    allot_status status = open_regular(&fd, &st, path, err);

    if (status)
        return status;
    m.size = (size_t)st.st_size;
    m.path = strdup(path);
    if (!m.path) {
        status = allot_fail_memory(err, strlen(path) + 1, "a path");
        goto cleanup;
    }
    if (m.size > 0)
        data = mmap(NULL, m.size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        status = allot_fail(err, ALLOT_ERR_IO, "cannot map %s: %s", path, file_cause());
        free(m.path);
        goto cleanup;
    }
    m.data = data;
    *map = m;
cleanup:
    close(fd);
    return status;
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    free(map->path);
    *map = (struct file_map){0};
}

static int64_t nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

allot_status file_identify(struct file_identity *id, const char *path, struct allot_error *err)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return allot_fail(err, ALLOT_ERR_IO, "cannot read %s: %s", path,
                          errno == ENOENT ? "no such file" : file_cause());
    if (!S_ISREG(st.st_mode))
        return allot_fail(err, ALLOT_ERR_IO, "cannot read %s: it is %s", path,
                          S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    *id = (struct file_identity){.size = st.st_size,
                                 .mtime_ns = nanoseconds(st.st_mtim),
                                 .ctime_ns = nanoseconds(st.st_ctim),
                                 .device = (uint64_t)st.st_dev,
                                 .inode = (uint64_t)st.st_ino};
    return ALLOT_OK;
}

bool file_same(const char *a, const char *b)
{
    struct stat sa, sb;

    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

const char *file_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool file_same_place(const char *a, const char *b)
{
    struct allot_error ignored;
    char *target_a = NULL, *target_b = NULL, *folder_a = NULL, *folder_b = NULL;
    const bool same = file_resolve_target(&target_a, &folder_a, a, &ignored) == ALLOT_OK &&
                      file_resolve_target(&target_b, &folder_b, b, &ignored) == ALLOT_OK &&
                      file_same(folder_a, folder_b) &&
                      strcmp(file_base_name(target_a), file_base_name(target_b)) == 0;
    free(target_a);
    free(target_b);
    free(folder_a);
    free(folder_b);
    return same;
}

allot_status file_require_space(const char *path, int64_t bytes, struct allot_error *err)
{
    char *resolved = NULL, *folder = NULL;
    char want[32], have[32];
    struct statvfs fs;
    uint64_t free_bytes;
    allot_status status = file_resolve_target(&resolved, &folder, path, err);

    if (status)
        return status;
    if (statvfs(folder, &fs) != 0)
        goto cleanup; /* unknown: the write itself will tell */
    free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize;
    if (bytes > 0 && free_bytes < (uint64_t)bytes)
        status = allot_fail(err, ALLOT_ERR_IO, "cannot write %s: it needs %s, %s has %s free", path,
                            str_size(want, bytes), folder, str_size(have, (int64_t)free_bytes));
cleanup:
    free(folder);
    free(resolved);
    return status;
}
