/* test_hash.c - SHA-256 against published vectors.  SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"

/* FIPS 180-4 examples, and a million times 'a'. */
static const struct {
    const char *text;
    size_t repeat;
    const char *hex;
} vectors[] = {
    {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

static void test_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof vectors / sizeof vectors[0]; v++) {
        size_t n = strlen(vectors[v].text);
        char *all = malloc(n * vectors[v].repeat + 1), hex[HASH_HEX];
        struct allot_error err;
        struct hash *h = NULL;

        assert_non_null(all);
        assert_int_equal(hash_new(&h, &err), ALLOT_OK);
        for (size_t i = 0; i < vectors[v].repeat; i++) {
            memcpy(all + i * n, vectors[v].text, n);
            hash_update(h, vectors[v].text, n);
        }
        hash_final(h, hex);
        assert_string_equal(hex, vectors[v].hex);
        hash_bytes(hex, all, n * vectors[v].repeat);
        assert_string_equal(hex, vectors[v].hex);
        free(all);
    }
}

static void hash_two(char hex[static HASH_HEX], const char *a, const char *b)
{
    struct allot_error err;
    struct hash *h = NULL;

    assert_int_equal(hash_new(&h, &err), ALLOT_OK);
    hash_update_str(h, a);
    hash_update_str(h, b);
    hash_final(h, hex);
}

static void test_fields_stand_apart(void **state)
{
    char a[HASH_HEX], b[HASH_HEX], c[HASH_HEX];

    (void)state;
    hash_two(a, "ab", "c");
    hash_two(b, "a", "bc");
    assert_string_not_equal(a, b);
    hash_bytes(c, "ab\0c", 5);
    assert_string_equal(a, c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_fields_stand_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
