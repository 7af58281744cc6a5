/* standalone_main.c - runs a libFuzzer target without libFuzzer. SPDX-License-Identifier: MIT
 *
 * usage: fuzz_NAME [-n MUTATIONS] [-s SEED] [-t SECONDS] [FILE|FOLDER]...
 *
 * Replays every file (of folders: one level), then mutates them: n inputs that depend on the seed only, or
 * as many as the seconds allow. An input that crashes is kept as crash-SEED-NUMBER in the working folder.
 * It finds no new paths by itself, as coverage-guided fuzzing does; it keeps found faults found. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_LIMIT = 1 << 20, MAX_FILES = 4096 };

struct input {
    uint8_t *data;
    size_t size;
};

static struct input corpus[MAX_FILES];
static size_t n_corpus;
static struct input current; /* what the target works on, for the crash handler */
static char crash_name[64];

static void keep_crash(int signal_number)
{
    int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    static const char text[] = "crashed; the input is kept as ";
    if (fd >= 0 && write(fd, current.data, current.size) == (ssize_t)current.size &&
        write(STDERR_FILENO, text, sizeof text - 1) > 0 &&
        write(STDERR_FILENO, crash_name, strlen(crash_name)) > 0 && write(STDERR_FILENO, "\n", 1) > 0)
        close(fd);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Exact-size heap storage, so that a sanitizer sees a read past the end. */
static void run(const uint8_t *data, size_t size, uint64_t seed, long number)
{
    current.data = malloc(size ? size : 1);
    if (!current.data)
        abort();
    memcpy(current.data, data, size);
    current.size = size;
    snprintf(crash_name, sizeof crash_name, "crash-%llu-%ld", (unsigned long long)seed, number);
    LLVMFuzzerTestOneInput(current.data, size);
    free(current.data);
}

static void add_file(const char *path)
{
    struct allot_error err;
    struct file_map map = {0};
    if (n_corpus == MAX_FILES)
        return;
    if (file_map_open(&map, path, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(2);
    }
    struct input *in = &corpus[n_corpus++];
    in->size = map.size < INPUT_LIMIT ? map.size : INPUT_LIMIT;
    in->data = malloc(in->size ? in->size : 1);
    if (!in->data)
        abort();
    if (in->size)
        memcpy(in->data, map.data, in->size);
    file_map_close(&map);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void add_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        if (!stat(path, &st))
            add_file(path);
        else
            fprintf(stderr, "no corpus at %s\n", path);
        return;
    }
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char file[4096];
        int length = snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (length < (int)sizeof file && !stat(file, &st) && S_ISREG(st.st_mode))
            add_file(file);
        free(entries[i]);
    }
    free(entries);
}

/* Changes buf in a few places: bytes, boundary values of 4 and 8 bytes, cuts, repeats, splices. */
static size_t mutate(uint8_t *buf, size_t size, uint64_t key)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     31,
                                     32,
                                     0x7f,
                                     0xff,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     0x7fffffffffffffff,
                                     0x8000000000000000,
                                     0xffffffffffffffff};
    uint64_t counter = 0;
    int changes = 1 + (int)(rng_u64(key, counter++) % 6);
    for (int c = 0; c < changes; c++) {
        uint64_t what = rng_u64(key, counter++) % 6, a = rng_u64(key, counter++), b = rng_u64(key, counter++);
        /* Headers are where the decisions are: half the places lie in the first KB. */
        size_t span = (a & 1) && size > 1024 ? 1024 : size;
        size_t at = span ? (size_t)((a >> 1) % span) : 0;
        uint64_t edge = edges[b % (sizeof edges / sizeof *edges)];
        size_t width = b & (1u << 20) ? 8 : 4;
        if (what == 0 && size) {
            buf[at] ^= (uint8_t)(1u << (b % 8));
        } else if (what == 1 && size) {
            buf[at] = (uint8_t)b;
        } else if (what == 2 && size >= 8) {
            at = at > size - 8 ? size - 8 : at;
            memcpy(buf + at, &edge, width);
        } else if (what == 3 && size) {
            size = at;
        } else if (what == 4 && size && size < INPUT_LIMIT / 2) {
            size_t n = (size_t)(b % 64) < size - at ? (size_t)(b % 64) : size - at;
            memmove(buf + at + n, buf + at, size - at);
            size += n;
        } else if (what == 5 && n_corpus) {
            const struct input *other = &corpus[b % n_corpus];
            size_t n = other->size > at ? other->size - at : 0;
            n = n < size - at ? n : size - at;
            memcpy(buf + at, other->data + (n ? at : 0), n);
        }
    }
    return size;
}

int main(int argc, char **argv)
{
    long mutations = 10000;
    uint64_t seed = 1;
    double seconds = 20;
    int option;
    while ((option = getopt(argc, argv, "n:s:t:")) != -1) {
        if (option == 'n')
            mutations = strtol(optarg, NULL, 10);
        else if (option == 's')
            seed = strtoull(optarg, NULL, 10);
        else if (option == 't')
            seconds = strtod(optarg, NULL);
        else
            return 2;
    }
    for (int i = optind; i < argc; i++)
        add_path(argv[i]);
    const int fatal[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        signal(fatal[i], keep_crash);

    uint8_t *buf = malloc(INPUT_LIMIT);
    if (!buf)
        return 2;
    run(buf, 0, seed, -1);
    for (size_t i = 0; i < n_corpus; i++)
        run(corpus[i].data, corpus[i].size, seed, (long)i);
    time_t start = time(NULL);
    long n = 0;
    for (; n < mutations && difftime(time(NULL), start) < seconds; n++) {
        const struct input *from = n_corpus ? &corpus[rng_u64(seed, (uint64_t)n) % n_corpus] : NULL;
        size_t size = from ? from->size : 64;
        if (from)
            memcpy(buf, from->data, size);
        else
            memset(buf, 0, size);
        size = mutate(buf, size, rng_mix(seed) + (uint64_t)n);
        run(buf, size, seed, (long)n_corpus + n);
    }
    printf("%zu corpus files, %ld mutations, seed %llu\n", n_corpus, n, (unsigned long long)seed);
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    free(buf);
    return 0;
}
