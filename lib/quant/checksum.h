/* checksum.h - the SHA-256 of an output, made while it is written.  SPDX-License-Identifier: MIT
 *
 * Inside lib/quant only. It begins with the header, which the file gets last, and follows the tensors as they
 * are finished, reading them back from the partial file (a mapping of the whole output would count as the
 * program's memory). The journal keeps how far it was and what it was then, so that a run that goes on finds
 * out whether the bytes are still those that were written, but for the last batch of rows. */
#ifndef ALLOT_QUANT_CHECKSUM_H
#define ALLOT_QUANT_CHECKSUM_H

#include "base/hash.h"
#include "base/strbuf.h"
#include "quant/partial.h"

struct checksum {
    struct hash *hash;
    uint8_t *piece;
    int64_t done; /* bytes of the file that are in it */
    allot_status status;
    struct allot_error error;
};

/* Zero-initialised storage. Takes in the header and what an earlier run has written, up to `end`; if that is
 * damaged, nothing of it counts any more: the partial file's counts become 0, and a note says so. */
allot_status checksum_begin(struct checksum *c, struct partial *p, const struct strbuf *header, int64_t end,
                            const struct allot_progress *progress, struct allot_error *err);
/* Takes in what is written; errors stay in c. */
void checksum_up_to(struct checksum *c, const struct partial *p, int64_t end);
/* For the journal's next state. */
void checksum_note(const struct checksum *c, struct partial *p);
allot_status checksum_end(struct checksum *c, const struct partial *p, int64_t file_size,
                          char hex[static HASH_HEX], struct allot_error *err);
void checksum_release(struct checksum *c);

#endif
