/* partial.c - an output file that outlives a killed run and is resumed by the next.
 * SPDX-License-Identifier: MIT */
#include "quant/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

/* The journal: magic, key, bytes checked and their digest, the boot during which it was written, and three
 * counts. */
enum {
    MAGIC_BYTES = 16,
    KEY_BYTES = 64,
    DIGEST_BYTES = 64,
    BOOT_BYTES = 16,
    CHECKED_AT = MAGIC_BYTES + KEY_BYTES,
    BOOT_AT = CHECKED_AT + 8 + DIGEST_BYTES,
    COUNTS_AT = BOOT_AT + BOOT_BYTES
};
static const char journal_magic[MAGIC_BYTES + 1] = "allot-partial-1\n";
_Static_assert(COUNTS_AT + 3 * 8 == PARTIAL_JOURNAL_BYTES, "journal layout");

static allot_status fail_write(const struct partial *p, struct allot_error *err)
{
    return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: %s", p->path, file_cause());
}

/* Identifies the running kernel's boot: what was written since is still in its cache even if it was
 * never synced. Zeros, equal to no journal's, where the system does not tell. */
static void boot_identity(char id[BOOT_BYTES])
{
    char text[64], hex[HASH_HEX];
    memset(id, 0, BOOT_BYTES);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f)
        return;
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    if (n < BOOT_BYTES)
        return;
    hash_bytes(hex, text, n);
    memcpy(id, hex, BOOT_BYTES);
}

static void put_u64(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static int64_t get_i64(const uint8_t *from)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return (int64_t)value;
}

static allot_status write_journal(struct partial *p, int64_t offset, struct allot_error *err)
{
    uint8_t bytes[PARTIAL_JOURNAL_BYTES];
    uint8_t *counts = bytes + COUNTS_AT;
    memcpy(bytes, journal_magic, MAGIC_BYTES);
    memcpy(bytes + MAGIC_BYTES, p->key, KEY_BYTES);
    put_u64(bytes + CHECKED_AT, (uint64_t)p->checked);
    memcpy(bytes + CHECKED_AT + 8, p->digest, DIGEST_BYTES);
    boot_identity((char *)bytes + BOOT_AT);
    put_u64(counts, (uint64_t)p->finished);
    put_u64(counts + 8, (uint64_t)p->durable);
    put_u64(counts + 16, (uint64_t)p->floored);
    return file_pwrite_all(p->fd, bytes, sizeof bytes, offset, p->path, err);
}

/* Takes over the counts of a journal of the same key; false if there is none at the offset, or the file was
 * cut since. */
static bool read_journal(struct partial *p, int64_t offset, int64_t n_tensors)
{
    struct stat st;
    uint8_t bytes[PARTIAL_JOURNAL_BYTES];
    char boot[BOOT_BYTES], zeros[BOOT_BYTES] = {0};
    const uint8_t *counts = bytes + COUNTS_AT;
    if (fstat(p->fd, &st) != 0 || st.st_size < p->file_size + PARTIAL_JOURNAL_BYTES)
        return false;
    if (pread(p->fd, bytes, sizeof bytes, (off_t)offset) != (ssize_t)sizeof bytes ||
        memcmp(bytes, journal_magic, MAGIC_BYTES) != 0 || memcmp(bytes + MAGIC_BYTES, p->key, KEY_BYTES) != 0)
        return false;
    const int64_t finished = get_i64(counts), durable = get_i64(counts + 8), floored = get_i64(counts + 16);
    if (durable < 0 || finished < durable || finished > n_tensors || floored < 0 || floored > finished)
        return false;
    boot_identity(boot);
    const bool same_boot =
        memcmp(boot, zeros, BOOT_BYTES) != 0 && memcmp(boot, bytes + BOOT_AT, BOOT_BYTES) == 0;
    p->durable = durable;
    p->finished = same_boot ? finished : durable;
    p->floored = floored < p->finished ? floored : p->finished;
    p->checked = get_i64(bytes + CHECKED_AT);
    memcpy(p->digest, bytes + CHECKED_AT + 8, DIGEST_BYTES);
    p->digest[DIGEST_BYTES] = '\0';
    return true;
}

static allot_status resolve_paths(struct partial *p, const char *out_path, struct allot_error *err)
{
    allot_status status = file_resolve_target(&p->target, NULL, out_path, err);
    if (status)
        return status;
    if (asprintf(&p->path, "%s.allot-partial", p->target) < 0) {
        p->path = NULL;
        return allot_fail_memory(err, strlen(p->target) + 16, "a path");
    }
    return ALLOT_OK;
}

/* Opens and locks; true in *again when another run renamed or removed the file in between. */
static allot_status open_locked(struct partial *p, bool *again, struct allot_error *err)
{
    struct stat opened, named;
    *again = false;
    p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->fd < 0)
        return errno == ELOOP
                   ? allot_fail(err, ALLOT_ERR_IO, "cannot write %s: it is a symbolic link", p->path)
                   : fail_write(p, err);
    if (flock(p->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: another run is writing it", p->path);
        return fail_write(p, err);
    }
    if (fstat(p->fd, &opened) != 0)
        return fail_write(p, err);
    if (!S_ISREG(opened.st_mode) || opened.st_nlink > 1)
        return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: it is %s", p->path,
                          S_ISREG(opened.st_mode) ? "a link to another file" : "not a regular file");
    *again = stat(p->path, &named) != 0 || named.st_dev != opened.st_dev || named.st_ino != opened.st_ino;
    return ALLOT_OK;
}

static void close_fd(struct partial *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

/* Whether the bytes are, as far as they go, those that start a journal. */
static bool starts_journal(const struct partial *p, int64_t offset)
{
    char bytes[MAGIC_BYTES];
    const ssize_t n = pread(p->fd, bytes, sizeof bytes, (off_t)offset);
    return n > 0 && memcmp(bytes, journal_magic, (size_t)n) == 0;
}

/* The header stands alone when a run was killed after the journal was cut off, zeros when a power cut left
 * the size without the bytes. */
static bool starts_with_header_or_zeros(const struct partial *p, const struct strbuf *header)
{
    static const char zeros[MAGIC_BYTES];
    bool same = false;
    char *bytes = malloc(header->len);
    if (bytes && header->len >= MAGIC_BYTES && pread(p->fd, bytes, header->len, 0) == (ssize_t)header->len)
        same = memcmp(bytes, header->data, header->len) == 0 || memcmp(bytes, zeros, MAGIC_BYTES) == 0;
    free(bytes);
    return same;
}

/* A file of that name may be somebody's model: only what a run has left is emptied. */
static allot_status check_ours(const struct partial *p, const struct partial_job *job,
                               struct allot_error *err)
{
    struct stat st;
    for (int i = 0; i < job->input->n_shards; i++) {
        const char *shard = gguf_model_shard_path(job->input, i);
        if (file_same(p->path, shard))
            return allot_fail(
                err, ALLOT_ERR_ARGUMENT,
                "%s, where unfinished output goes, is the input %s itself: choose another output", p->path,
                shard);
    }
    if (fstat(p->fd, &st) != 0)
        return fail_write(p, err);
    if (st.st_size == 0 || starts_journal(p, 0) || starts_journal(p, st.st_size - PARTIAL_JOURNAL_BYTES) ||
        starts_with_header_or_zeros(p, job->header))
        return ALLOT_OK;
    return allot_fail(err, ALLOT_ERR_IO,
                      "cannot write %s: it is in the way and not an unfinished output; move or remove it",
                      p->path);
}

allot_status partial_open(struct partial *p, const struct partial_job *job, struct allot_error *err)
{
    *p = (struct partial){.fd = -1, .file_size = job->file_size, .sync_interval = PARTIAL_SYNC_INTERVAL};
    snprintf(p->key, sizeof p->key, "%s", job->key);
    allot_status status = resolve_paths(p, job->out_path, err);
    bool again = status == ALLOT_OK;
    for (int attempt = 0; again && attempt < 100; attempt++) {
        close_fd(p);
        status = open_locked(p, &again, err);
        if (status)
            break;
    }
    if (!status && again)
        status = allot_fail(err, ALLOT_ERR_IO, "cannot write %s: another run keeps replacing it", p->path);
    if (!status)
        status = check_ours(p, job, err);
    if (!status && !read_journal(p, 0, job->n_tensors) && !read_journal(p, job->file_size, job->n_tensors) &&
        ftruncate(p->fd, 0) != 0)
        status = fail_write(p, err);
    /* Not ours, or nothing in it: it stays as it is. */
    if (status)
        partial_close(p, true);
    return status;
}

allot_status partial_require_space(const char *out_path, int64_t bytes, struct allot_error *err)
{
    struct partial p = {.fd = -1};
    struct stat st;
    allot_status status = resolve_paths(&p, out_path, err);
    if (!status) {
        const int64_t taken = stat(p.path, &st) == 0 ? (int64_t)st.st_blocks * 512 : 0;
        status = file_require_space(out_path, bytes - taken, err);
    }
    partial_close(&p, true);
    return status;
}

/* The journal comes first: whenever the run is killed, the file tells what it is. */
allot_status partial_reserve(struct partial *p, struct allot_error *err)
{
    const int64_t size = p->file_size + PARTIAL_JOURNAL_BYTES;
    allot_status status = partial_require_space(p->target, size, err);
    if (!status)
        status = write_journal(p, 0, err);
    if (status)
        return status;
    if (fallocate(p->fd, 0, 0, (off_t)size) != 0) {
        /* Not every file system can; then the writes will tell. */
        if ((errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) || ftruncate(p->fd, (off_t)size) != 0)
            return fail_write(p, err);
    }
    return ALLOT_OK;
}

allot_status partial_write(struct partial *p, const void *bytes, size_t n, int64_t offset,
                           struct allot_error *err)
{
    return file_pwrite_all(p->fd, bytes, n, offset, p->path, err);
}

allot_status partial_read(const struct partial *p, void *bytes, size_t n, int64_t offset,
                          struct allot_error *err)
{
    uint8_t *to = bytes;
    while (n > 0) {
        const ssize_t done = pread(p->fd, to, n, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return allot_fail(err, ALLOT_ERR_IO, "cannot read %s: %s", p->path,
                              done < 0 ? strerror(errno) : "it ends too early");
        to += done;
        n -= (size_t)done;
        offset += done;
    }
    return ALLOT_OK;
}

allot_status partial_advance(struct partial *p, int64_t n_bytes, bool floored, struct allot_error *err)
{
    p->finished++;
    p->floored += floored;
    p->unsynced += n_bytes;
    if (p->unsynced >= p->sync_interval) {
        if (fdatasync(p->fd) != 0)
            return fail_write(p, err);
        p->durable = p->finished;
        p->unsynced = 0;
    }
    return write_journal(p, 0, err);
}

allot_status partial_seal(struct partial *p, const void *header, size_t n, struct allot_error *err)
{
    if (fdatasync(p->fd) != 0)
        return fail_write(p, err);
    p->durable = p->finished;
    allot_status status = write_journal(p, p->file_size, err);
    if (status)
        return status;
    if (fdatasync(p->fd) != 0)
        return fail_write(p, err);
    status = partial_write(p, header, n, 0, err);
    if (status)
        return status;
    return fsync(p->fd) == 0 ? ALLOT_OK : fail_write(p, err);
}

/* The bytes are synced already. Should a power cut undo the cut but not the rename, the journal behind the
 * end disturbs no reader. */
allot_status partial_commit(struct partial *p, struct allot_error *err)
{
    if (ftruncate(p->fd, (off_t)p->file_size) != 0)
        return fail_write(p, err);
    if (!file_replace(p->fd, p->path, p->target))
        return allot_fail(err, ALLOT_ERR_IO, "cannot write %s: %s", p->target, file_cause());
    (void)!fsync(p->fd);
    free(p->path);
    p->path = NULL;
    close_fd(p);
    return ALLOT_OK;
}

void partial_close(struct partial *p, bool keep)
{
    if (!keep && p->path && p->fd >= 0)
        unlink(p->path);
    close_fd(p);
    free(p->target);
    free(p->path);
    *p = (struct partial){.fd = -1};
}
