/* hash.h - SHA-256 (libcrypto).  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_HASH_H
#define ALLOT_BASE_HASH_H

#include "allot.h"

#define HASH_HEX 65 /* 64 hexadecimal digits and a NUL */

/* Lower-case hexadecimal SHA-256 of n bytes. Aborts nothing: on a library failure writes "". */
void hash_bytes(char hex[static HASH_HEX], const void *bytes, size_t n);

/* Incremental form. */
struct hash;
allot_status hash_new(struct hash **out, struct allot_error *err);
void hash_update(struct hash *h, const void *bytes, size_t n);
void hash_update_str(struct hash *h,
                     const char *s); /* includes the final NUL, so fields cannot run together */
void hash_so_far(const struct hash *h, char hex[static HASH_HEX]); /* more may follow */
void hash_final(struct hash *h, char hex[static HASH_HEX]);        /* frees h */

#endif
