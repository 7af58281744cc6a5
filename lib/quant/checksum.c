/* checksum.c - the SHA-256 of an output, made while it is written.  SPDX-License-Identifier: MIT */
#include "quant/checksum.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { PIECE_BYTES = 1 << 20, REPORT_BYTES = 16 << 20 };

void checksum_up_to(struct checksum *c, const struct partial *p, int64_t end)
{
    while (c->done < end && !c->status) {
        const int64_t left = end - c->done, n = left < PIECE_BYTES ? left : PIECE_BYTES;
        c->status = partial_read(p, c->piece, (size_t)n, c->done, &c->error);
        if (!c->status)
            hash_update(c->hash, c->piece, (size_t)n);
        c->done += n;
    }
}

void checksum_note(const struct checksum *c, struct partial *p)
{
    p->checked = c->done;
    hash_so_far(c->hash, p->digest);
}

static void drop_hash(struct checksum *c)
{
    char hex[HASH_HEX];
    if (c->hash)
        hash_final(c->hash, hex);
    c->hash = NULL;
}

static allot_status start(struct checksum *c, const struct strbuf *header, struct allot_error *err)
{
    allot_status status = hash_new(&c->hash, err);
    if (status)
        return status;
    hash_update(c->hash, header->data, header->len);
    c->done = (int64_t)header->len;
    return ALLOT_OK;
}

static allot_status catch_up(struct checksum *c, const struct partial *p, int64_t end,
                             const struct allot_progress *progress, struct allot_error *err)
{
    allot_status status = ALLOT_OK;
    while (c->done < end && !status) {
        const int64_t left = end - c->done;
        status = allot_report(progress, err, "resume", c->done, end);
        if (!status)
            checksum_up_to(c, p, c->done + (left < REPORT_BYTES ? left : REPORT_BYTES));
        if (!status && c->status) {
            *err = c->error;
            status = c->status;
        }
    }
    return status;
}

allot_status checksum_begin(struct checksum *c, struct partial *p, const struct strbuf *header, int64_t end,
                            const struct allot_progress *progress, struct allot_error *err)
{
    char digest[HASH_HEX];
    c->piece = malloc(PIECE_BYTES);
    if (!c->piece)
        return allot_fail_memory(err, PIECE_BYTES, "a checksum");
    allot_status status = start(c, header, err);
    if (status || p->finished == 0)
        return status;
    /* after a power cut more may have been checked than is left */
    if (p->checked < c->done || p->checked > end)
        return catch_up(c, p, end, progress, err);
    status = catch_up(c, p, p->checked, progress, err);
    if (status)
        return status;
    hash_so_far(c->hash, digest);
    if (strcmp(digest, p->digest) == 0)
        return catch_up(c, p, end, progress, err);
    allot_note(progress, "%s was damaged since it was written; starting over", p->path);
    p->finished = p->durable = p->floored = 0;
    drop_hash(c);
    return start(c, header, err);
}

allot_status checksum_end(struct checksum *c, const struct partial *p, int64_t file_size,
                          char hex[static HASH_HEX], struct allot_error *err)
{
    checksum_up_to(c, p, file_size);
    if (c->status) {
        *err = c->error;
        return c->status;
    }
    hash_final(c->hash, hex);
    c->hash = NULL;
    return ALLOT_OK;
}

void checksum_release(struct checksum *c)
{
    drop_hash(c);
    free(c->piece);
    *c = (struct checksum){0};
}
