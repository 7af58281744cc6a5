/* hash.c - SHA-256 (libcrypto).  SPDX-License-Identifier: MIT */
#include "base/hash.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { SHA256_BYTES = 32 };

struct hash {
    EVP_MD_CTX *ctx;
    bool failed;
};

static void to_hex(char hex[static HASH_HEX], const unsigned char *digest)
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < SHA256_BYTES; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * SHA256_BYTES] = '\0';
}

void hash_bytes(char hex[static HASH_HEX], const void *bytes, size_t n)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;

    hex[0] = '\0';
    if (EVP_Digest(n ? bytes : "", n, digest, &size, EVP_sha256(), NULL) == 1 && size == SHA256_BYTES)
        to_hex(hex, digest);
}

allot_status hash_new(struct hash **out, struct allot_error *err)
{
    struct hash *h = calloc(1, sizeof *h);

    if (!h)
        return allot_fail_memory(err, sizeof *h, "a hash");
    h->ctx = EVP_MD_CTX_new();
    if (!h->ctx || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(h->ctx);
        free(h);
        return allot_fail(err, ALLOT_ERR_INTERNAL, "libcrypto cannot start a SHA-256");
    }
    *out = h;
    return ALLOT_OK;
}

void hash_update(struct hash *h, const void *bytes, size_t n)
{
    if (n > 0 && EVP_DigestUpdate(h->ctx, bytes, n) != 1)
        h->failed = true;
}

void hash_update_str(struct hash *h, const char *s)
{
    hash_update(h, s, strlen(s) + 1);
}

void hash_so_far(const struct hash *h, char hex[static HASH_HEX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_MD_CTX *copy = EVP_MD_CTX_new();

    hex[0] = '\0';
    if (copy && !h->failed && EVP_MD_CTX_copy_ex(copy, h->ctx) == 1 &&
        EVP_DigestFinal_ex(copy, digest, &size) == 1 && size == SHA256_BYTES)
        to_hex(hex, digest);
    EVP_MD_CTX_free(copy);
}

void hash_final(struct hash *h, char hex[static HASH_HEX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;

    hex[0] = '\0';
    if (!h->failed && EVP_DigestFinal_ex(h->ctx, digest, &size) == 1 && size == SHA256_BYTES)
        to_hex(hex, digest);
    EVP_MD_CTX_free(h->ctx);
    free(h);
}
