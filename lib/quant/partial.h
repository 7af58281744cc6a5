/* partial.h - an output file that outlives a killed run and is resumed by the next.
 * SPDX-License-Identifier: MIT
 *
 * OUT.allot-partial holds the finished file's bytes but for its header, in whose place a journal says whose
 * file it is and how many tensors are finished. A lock keeps a second run away while one writes. */
#ifndef ALLOT_QUANT_PARTIAL_H
#define ALLOT_QUANT_PARTIAL_H

#include "base/strbuf.h"
#include "gguf/model.h"

/* What a partial file is for. */
struct partial_job {
    const char *out_path;
    int64_t file_size, n_tensors;
    const char *key;             /* says of which job the bytes are */
    const struct strbuf *header; /* of the finished file */
    const struct gguf_model *input;
};

struct partial {
    char *target; /* the output path, links resolved */
    char *path;   /* target + ".allot-partial" */
    int fd;       /* -1 when closed */
    int64_t file_size;
    char key[65];
    int64_t finished;      /* tensors */
    int64_t floored;       /* of them, see struct quantize_result */
    int64_t durable;       /* finished tensors that survive a power cut */
    int64_t unsynced;      /* bytes written since the last sync */
    int64_t checked;       /* bytes from the file's start on, its header in place, whose SHA-256 is: */
    char digest[65];       /* empty: of none */
    int64_t sync_interval; /* as many may be; partial_open sets PARTIAL_SYNC_INTERVAL */
};

/* Bytes between two syncs: what a power cut can cost. */
#define PARTIAL_SYNC_INTERVAL (64ll << 20)
/* Bytes at the head of the file that a journal takes; no header is shorter. */
#define PARTIAL_JOURNAL_BYTES 192

/* Fails when an output of so many bytes would not fit; what an unfinished one has taken counts as room.
 * Errors as those of an output's place too. */
allot_status partial_require_space(const char *out_path, int64_t bytes, struct allot_error *err);

/* Zero-initialised storage. Opens, locks and, if it belongs to another key or is damaged, empties the
 * partial file of the output; `finished` tells where to go on. Errors: the output's folder is absent or
 * cannot be written, the output is no regular file, another run holds the lock, the file under the partial
 * file's name is an input or was not written here. */
allot_status partial_open(struct partial *p, const struct partial_job *job, struct allot_error *err);

/* Fails when the file system has too little free space; reserves it where the file system can. */
allot_status partial_reserve(struct partial *p, struct allot_error *err);

/* Any thread may write. */
allot_status partial_write(struct partial *p, const void *bytes, size_t n, int64_t offset,
                           struct allot_error *err);

allot_status partial_read(const struct partial *p, void *bytes, size_t n, int64_t offset,
                          struct allot_error *err);

/* Notes that one more tensor, whose n bytes have been written, is finished; with checked and digest as they
 * stand. */
allot_status partial_advance(struct partial *p, int64_t n_bytes, bool floored, struct allot_error *err);

/* Writes the header and syncs. The file is then complete under p->path; the journal is kept behind its end,
 * where no reader looks, so that a kill loses nothing. */
allot_status partial_seal(struct partial *p, const void *header, size_t n, struct allot_error *err);

/* Cuts the journal off, renames the file to the target and closes: the only moment at which a kill can lose
 * it lies between the first two. */
allot_status partial_commit(struct partial *p, struct allot_error *err);

/* Closes; removes the file unless it is to be resumed. Harmless after a commit. */
void partial_close(struct partial *p, bool keep);

#endif
