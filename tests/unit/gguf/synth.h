/* synth.h - small GGUF files put together byte by byte, independently of lib/gguf, with the place of every
 * field remembered so that tests can corrupt it. SPDX-License-Identifier: MIT */
#ifndef TESTS_SYNTH_H
#define TESTS_SYNTH_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { SYNTH_LIMIT = 1 << 16, SYNTH_MARKS = 160 };

struct synth {
    uint8_t data[SYNTH_LIMIT];
    size_t n;
    struct {
        char label[48];
        size_t at, size;
    } marks[SYNTH_MARKS];
    int n_marks;
};

static inline void synth_bytes(struct synth *s, const char *label, const void *bytes, size_t n)
{
    assert_true(s->n + n <= SYNTH_LIMIT);
    if (label) {
        assert_true(s->n_marks < SYNTH_MARKS);
        snprintf(s->marks[s->n_marks].label, sizeof s->marks[0].label, "%s", label);
        s->marks[s->n_marks].at = s->n;
        s->marks[s->n_marks++].size = n;
    }
    if (n > 0)
        memcpy(s->data + s->n, bytes, n);
    s->n += n;
}

/* Labels with a printf-style part, for use as the label argument. Valid until the next call. */
static inline const char *synth_label(const char *name, const char *field)
{
    static char label[48];
    snprintf(label, sizeof label, "%s%s", name, field);
    return label;
}

static inline void synth_u8(struct synth *s, const char *label, uint8_t v)
{
    synth_bytes(s, label, &v, sizeof v);
}

static inline void synth_u32(struct synth *s, const char *label, uint32_t v)
{
    synth_bytes(s, label, &v, sizeof v);
}

static inline void synth_u64(struct synth *s, const char *label, uint64_t v)
{
    synth_bytes(s, label, &v, sizeof v);
}

static inline void synth_str(struct synth *s, const char *name, const char *text)
{
    synth_u64(s, name ? synth_label(name, ".len") : NULL, strlen(text));
    synth_bytes(s, name ? synth_label(name, ".text") : NULL, text, strlen(text));
}

static inline void synth_start(struct synth *s, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    s->n = 0;
    s->n_marks = 0;
    synth_bytes(s, "magic", "GGUF", 4);
    synth_u32(s, "version", version);
    synth_u64(s, "n_tensors", n_tensors);
    synth_u64(s, "n_kv", n_kv);
}

/* A key and its type; the value follows. */
static inline void synth_key(struct synth *s, const char *key, uint32_t type)
{
    synth_str(s, key, key);
    synth_u32(s, synth_label(key, ".type"), type);
}

static inline void synth_kv_u32(struct synth *s, const char *key, uint32_t value)
{
    synth_key(s, key, 4);
    synth_u32(s, synth_label(key, ".value"), value);
}

static inline void synth_kv_str(struct synth *s, const char *key, const char *value)
{
    synth_key(s, key, 8);
    synth_u64(s, synth_label(key, ".value.len"), strlen(value));
    synth_bytes(s, synth_label(key, ".value"), value, strlen(value));
}

static inline void synth_kv_array(struct synth *s, const char *key, uint32_t type, uint64_t n)
{
    synth_key(s, key, 9);
    synth_u32(s, synth_label(key, ".element"), type);
    synth_u64(s, synth_label(key, ".count"), n);
}

static inline void synth_tensor(struct synth *s, const char *name, uint32_t n_dims, const uint64_t *ne,
                                uint32_t type, uint64_t offset)
{
    static const char *const dims[] = {".ne0", ".ne1", ".ne2", ".ne3"};
    synth_str(s, name, name);
    synth_u32(s, synth_label(name, ".n_dims"), n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        synth_u64(s, i < 4 ? synth_label(name, dims[i]) : NULL, ne[i]);
    synth_u32(s, synth_label(name, ".ggml_type"), type);
    synth_u64(s, synth_label(name, ".offset"), offset);
}

static inline void synth_pad(struct synth *s, size_t alignment)
{
    while (s->n % alignment != 0)
        synth_u8(s, NULL, 0);
}

/* n bytes of data that differ from place to place. */
static inline void synth_data(struct synth *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        synth_u8(s, NULL, (uint8_t)(s->n * 7 + s->n / 251));
}

static inline size_t synth_find(const struct synth *s, const char *label)
{
    for (int i = 0; i < s->n_marks; i++)
        if (strcmp(s->marks[i].label, label) == 0)
            return s->marks[i].at;
    fail_msg("no field '%s'", label);
    return 0;
}

static inline void synth_patch(struct synth *s, const char *label, const void *bytes, size_t n)
{
    memcpy(s->data + synth_find(s, label), bytes, n);
}

/* ---- The file most tests start from -------------------------------------------------------------
 * Every metadata type, and four tensors stored in an order that is not llama.cpp's. */
static inline void synth_model(struct synth *s, uint32_t version)
{
    static const uint64_t out[] = {64, 3}, up[] = {8, 2}, down[] = {32, 2, 1}, norm[] = {5};
    static const uint8_t small[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t i64 = -5000000000;
    const uint64_t u64 = UINT64_MAX;
    const float f32 = 0.5f;
    const double f64 = 1e300;

    synth_start(s, version, 4, 18);
    synth_kv_str(s, "general.architecture", "llama");
    synth_kv_u32(s, "general.alignment", 32);
    synth_key(s, "k.u8", 0);
    synth_u8(s, "k.u8.value", 200);
    synth_key(s, "k.i8", 1);
    synth_u8(s, "k.i8.value", (uint8_t)-7);
    synth_key(s, "k.u16", 2);
    synth_bytes(s, "k.u16.value", "\xff\xff", 2);
    synth_key(s, "k.i16", 3);
    synth_bytes(s, "k.i16.value", "\xfe\xff", 2);
    synth_kv_u32(s, "k.u32", 4000000000u);
    synth_key(s, "k.i32", 5);
    synth_u32(s, "k.i32.value", (uint32_t)-9);
    synth_key(s, "k.f32", 6);
    synth_bytes(s, "k.f32.value", &f32, 4);
    synth_key(s, "k.bool", 7);
    synth_u8(s, "k.bool.value", 1);
    synth_key(s, "k.u64", 10);
    synth_bytes(s, "k.u64.value", &u64, 8);
    synth_key(s, "k.i64", 11);
    synth_bytes(s, "k.i64.value", &i64, 8);
    synth_key(s, "k.f64", 12);
    synth_bytes(s, "k.f64.value", &f64, 8);
    synth_kv_array(s, "a.u16", 2, 4);
    synth_bytes(s, "a.u16.values", small, 8);
    synth_kv_array(s, "a.bool", 7, 2);
    synth_bytes(s, "a.bool.values", "\1\0", 2);
    synth_kv_array(s, "a.str", 8, 3);
    synth_str(s, "a.str.0", "");
    synth_str(s, "a.str.1", "one");
    synth_str(s, "a.str.2", "zwei");
    synth_kv_array(s, "a.none", 6, 0);
    synth_kv_str(s, "k.empty", "");
    synth_tensor(s, "output.weight", 2, out, 2, 0);
    synth_tensor(s, "blk.10.up.weight", 2, up, 0, 128);
    synth_tensor(s, "blk.2.down.weight", 3, down, 1, 192);
    synth_tensor(s, "blk.2.norm.weight", 1, norm, 0, 320);
    synth_bytes(s, "header_end", NULL, 0);
    synth_pad(s, 32);
    synth_bytes(s, "data", NULL, 0);
    synth_data(s, 320 + 20); /* the last tensor's end */
    synth_bytes(s, "data_end", NULL, 0);
    synth_pad(s, 32);
}

/* ---- Files -------------------------------------------------------------------------------------- */

/* A file without a name, openable under the path it fills in; -1 never: failure ends the test. */
static inline int synth_memfd(char path[64])
{
    int fd = memfd_create("synth", 0);
    assert_true(fd >= 0);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static inline void synth_fill(int fd, const void *bytes, size_t n)
{
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_true(pwrite(fd, bytes, n, 0) == (ssize_t)n);
}

static inline void synth_save(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fwrite(bytes, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

/* A new folder under $TMPDIR or /tmp; caller frees and empties it. */
static inline char *synth_folder(void)
{
    const char *base = getenv("TMPDIR");
    char *path = malloc(4096);
    assert_non_null(path);
    snprintf(path, 4096, "%s/allot-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

/* Every failure must read as one line that names the file. */
static inline void synth_check_message(const char *message, const char *path)
{
    assert_true(message[0] != '\0');
    if (!strstr(message, path) || strchr(message, '\n'))
        fail_msg("not one line naming %s: %s", path, message);
}

#endif
