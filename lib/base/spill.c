/* spill.c - large blocks, in memory or in a temporary file.  SPDX-License-Identifier: MIT */
#include "base/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/strbuf.h"

/* A new file without a name; -1: errno says why. Not every file system knows O_TMPFILE. */
static int open_nameless(const char *folder)
{
    char *path;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    if (asprintf(&path, "%s/.allot-XXXXXX", folder) < 0)
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

/* Reserves the bytes: a write to a mapped page for which there is no room would be the end of the process. */
static allot_status reserve(int fd, size_t size, const char *folder, const char *what,
                            struct allot_error *err)
{
    char want[32], have[32];
    struct statfs fs;
    if (fstatfs(fd, &fs) == 0) {
        const uint64_t room = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
        if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)
            return allot_fail(err, ALLOT_ERR_IO,
                              "%s do not fit into memory, and the temporary file's folder %s is memory too",
                              what, folder);
        if (room < size)
            return allot_fail(err, ALLOT_ERR_IO, "%s need a temporary file of %s, and %s has %s free", what,
                              str_size(want, (int64_t)size), folder, str_size(have, (int64_t)room));
    }
    errno = posix_fallocate(fd, 0, (off_t)size);
    if (errno == 0)
        return ALLOT_OK;
    return allot_fail(err, ALLOT_ERR_IO, "%s: cannot reserve %s in a temporary file in %s: %s", what,
                      str_size(want, (int64_t)size), folder, file_cause());
}

static allot_status map_file(struct spill *block, size_t size, const char *folder, const char *what,
                             struct allot_error *err)
{
    const int fd = open_nameless(folder);
    if (fd < 0)
        return allot_fail(err, ALLOT_ERR_IO, "%s: cannot make a temporary file in %s: %s", what, folder,
                          file_cause());
    allot_status status = reserve(fd, size, folder, what, err);
    void *data = MAP_FAILED;
    if (status == ALLOT_OK)
        data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (status == ALLOT_OK && data == MAP_FAILED)
        status = allot_fail(err, ALLOT_ERR_IO, "%s: cannot map a temporary file in %s: %s", what, folder,
                            file_cause());
    if (status == ALLOT_OK)
        *block = (struct spill){data, size, true};
    return status;
}

allot_status spill_new(struct spill *block, size_t size, const char *folder, const char *what,
                       struct allot_error *err)
{
    *block = (struct spill){0};
    size = size ? size : 1;
    if (folder)
        return map_file(block, size, folder, what, err);
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return allot_fail_memory(err, size, what);
    (void)madvise(data, size, MADV_HUGEPAGE); /* far fewer faults on the first walk through it */
    *block = (struct spill){data, size, false};
    return ALLOT_OK;
}

void spill_release(struct spill *block)
{
    if (block->data)
        munmap(block->data, block->size);
    *block = (struct spill){0};
}

void spill_forget(const struct spill *block, const void *start, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)start / page * page;
    /* Of a shared mapping this drops the process's view alone; a failure costs memory, nothing else. */
    if (block->in_file)
        (void)madvise((void *)first, (uintptr_t)start + n - first, MADV_DONTNEED);
}
