/* grids.c - grids read from ggml, and the neighbours of what is no point.  SPDX-License-Identifier: MIT */
#include "quant/grids.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_POINTS = 2048, MOST_SIZE = 8, MOST_VALUES = 8, BLOCK_WEIGHTS = 256 };

/* Where a block of the type has the index of its first group: the low byte at 2, after the FP16 scale, the
 * higher bits in the byte high_at (0: there are none). `distances`: at which neighbours are searched.
 * `shortens`: there are short lists. */
struct grid_spec {
    enum ggml_type type;
    int n_points, size, bits, values, high_at, distances;
    bool shortens;
};

static const struct grid_spec specs[] = {
    {GGML_TYPE_IQ1_S, 2048, 8, 2, 3, 34, 3, true}, {GGML_TYPE_IQ2_XXS, 256, 8, 2, 3, 0, 2, true},
    {GGML_TYPE_IQ2_XS, 512, 8, 2, 3, 3, 2, true},  {GGML_TYPE_IQ2_S, 1024, 8, 2, 3, 66, 1, false},
    {GGML_TYPE_IQ3_XXS, 256, 4, 3, 8, 0, 2, true}, {GGML_TYPE_IQ3_S, 512, 4, 3, 8, 66, 3, true},
};

enum { N_GRIDS = sizeof specs / sizeof *specs };

static struct quant_grid grids[N_GRIDS];
static _Atomic(const struct quant_grid *) made[N_GRIDS];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* ---- The points -----------------------------------------------------------------------------------------
 */

/* The coordinates of all points as ggml reads them: of a block whose scale is 1 and whose signs are plus. */
static bool read_values(float *values, const struct grid_spec *s)
{
    const struct ggml_type_traits *traits = ggml_get_type_traits(s->type);
    uint8_t block[BLOCK_WEIGHTS] = {0};
    float weights[BLOCK_WEIGHTS];
    if (!traits->to_float || traits->blck_size != BLOCK_WEIGHTS || traits->type_size > sizeof block)
        return false;
    const ggml_fp16_t one = ggml_fp32_to_fp16(1);
    memcpy(block, &one, sizeof one);
    for (int i = 0; i < s->n_points; i++) {
        block[2] = (uint8_t)i;
        if (s->high_at)
            block[s->high_at] = (uint8_t)(i >> 8);
        traits->to_float(block, weights, BLOCK_WEIGHTS);
        memcpy(values + i * s->size, weights, sizeof *weights * (size_t)s->size);
    }
    return true;
}

/* Enters a value in a rising list of at most `most`; false if that would be one too many. */
static bool enter_value(float *list, int *n, int most, float value)
{
    int at = 0;
    while (at < *n && list[at] < value)
        at++;
    if (at < *n && list[at] == value)
        return true;
    if (*n == most)
        return false;
    memmove(list + at + 1, list + at, sizeof *list * (size_t)(*n - at));
    list[at] = value;
    (*n)++;
    return true;
}

/* Codes are ranks among all values that occur. coordinates: [size][n_points]. */
static bool read_points(uint8_t *coordinates, uint16_t *points, const struct grid_spec *s)
{
    static float values[MOST_POINTS * MOST_SIZE]; /* one grid is made at a time */
    float ranks[MOST_VALUES];
    int n = 0;
    if (!read_values(values, s))
        return false;
    for (int i = 0; i < s->n_points * s->size; i++)
        if (!enter_value(ranks, &n, s->values, values[i]))
            return false;
    for (int p = 0; p < s->n_points; p++) {
        unsigned word = 0;
        for (int i = 0; i < s->size; i++) {
            unsigned code = 0;
            while (ranks[code] != values[p * s->size + i])
                code++;
            coordinates[i * s->n_points + p] = (uint8_t)code;
            word |= code << (s->bits * i);
        }
        points[p] = (uint16_t)word;
    }
    return n == s->values;
}

/* ---- Their neighbours -----------------------------------------------------------------------------------
 */

/* Codes of a word; false if one of them does not occur. */
static bool split_word(uint8_t *codes, unsigned word, const struct grid_spec *s)
{
    for (int i = 0; i < s->size; i++) {
        codes[i] = (uint8_t)(word >> (s->bits * i) & ((1u << s->bits) - 1));
        if (codes[i] >= s->values)
            return false;
    }
    return true;
}

/* Squares of the distances from a word to all points, in steps between codes: at most 4 * 7^2. */
static void distances_to(uint8_t *distances, const uint8_t *codes, const uint8_t *coordinates,
                         const struct grid_spec *s)
{
    memset(distances, 0, (size_t)s->n_points);
    for (int i = 0; i < s->size; i++, coordinates += s->n_points)
        for (int p = 0; p < s->n_points; p++) {
            uint8_t d = (uint8_t)(coordinates[p] - codes[i]);
            distances[p] = (uint8_t)(distances[p] + d * d);
        }
}

/* Room for the lists, which is made larger as needed. */
struct pool {
    uint16_t *words;
    size_t n, room;
};

static bool pool_room(struct pool *pool, size_t more)
{
    if (pool->n + more <= pool->room)
        return true;
    size_t room = 2 * (pool->n + more);
    uint16_t *words = realloc(pool->words, sizeof *words * room);
    if (!words)
        return false;
    pool->words = words;
    pool->room = room;
    return true;
}

/* The neighbours of a word in their order; returns how many. */
static int list_neighbours(uint16_t *list, const uint8_t *distances, const uint16_t *points,
                           const struct grid_spec *s)
{
    bool occurs[256] = {false};
    int n = 0, seen = 0;
    for (int p = 0; p < s->n_points; p++)
        occurs[distances[p]] = true;
    for (int d = 0; d < 256 && seen < s->distances; d++) {
        if (!occurs[d])
            continue;
        seen++;
        for (int p = 0; p < s->n_points; p++)
            if (distances[p] == d)
                list[n++] = points[p];
    }
    return n;
}

/* Whether every coordinate of `middle` is on the way from that of `from` to that of `to`. */
static bool on_the_way(unsigned from, unsigned middle, unsigned to, const struct grid_spec *s)
{
    const unsigned mask = (1u << s->bits) - 1;
    for (int i = 0; i < s->size; i++, from >>= s->bits, middle >>= s->bits, to >>= s->bits) {
        const unsigned a = from & mask, b = middle & mask, c = to & mask;
        if (!((a <= b && b <= c) || (c <= b && b <= a)))
            return false;
    }
    return true;
}

/* Leaves out the neighbours that have another, before them in the list, on the way from the word. If each
 * weight is nearest to its code in the word, it is no farther from that other's coordinate. */
static int shorten_list(uint16_t *kept, const uint16_t *list, int n, unsigned word, const struct grid_spec *s)
{
    int n_kept = 0;
    for (int k = 0; k < n; k++) {
        bool needed = true;
        for (int j = 0; j < n_kept && needed; j++)
            needed = !on_the_way(word, kept[j], list[k], s);
        if (needed)
            kept[n_kept++] = list[k];
    }
    return n_kept;
}

/* Adds a list; returns its entry, or 0 if there is no room for it. */
static int32_t add_list(struct pool *pool, const uint16_t *list, int n)
{
    const int steps = (n + GRID_STEP - 1) / GRID_STEP;
    const size_t at = pool->n / GRID_VECTOR;
    if (!pool_room(pool, (size_t)n + GRID_VECTOR) || steps > 255 || at > INT32_MAX >> 8)
        return 0;
    memcpy(pool->words + pool->n, list, sizeof *list * (size_t)n);
    for (pool->n += (size_t)n; pool->n % GRID_VECTOR != 0; pool->n++)
        pool->words[pool->n] = list[n - 1];
    return ~(int32_t)(at << 8 | (unsigned)steps);
}

static bool make_lists(struct pool *pool, int32_t *map, const uint8_t *coordinates, const uint16_t *points,
                       const struct grid_spec *s)
{
    uint8_t distances[MOST_POINTS], codes[MOST_SIZE];
    uint16_t list[MOST_POINTS], kept[MOST_POINTS];
    const unsigned end = 1u << (s->bits * s->size);
    int32_t *short_map = s->shortens ? map + GRID_SHORT : map;
    for (int p = 0; p < s->n_points; p++)
        map[points[p]] = short_map[points[p]] = p;
    for (unsigned word = 0; word < end; word++) {
        if (map[word] >= 0 || !split_word(codes, word, s))
            continue;
        distances_to(distances, codes, coordinates, s);
        const int n = list_neighbours(list, distances, points, s);
        map[word] = add_list(pool, list, n);
        if (s->shortens)
            short_map[word] = add_list(pool, kept, shorten_list(kept, list, n, word, s));
        if (map[word] == 0 || short_map[word] == 0)
            return false;
    }
    return true;
}

/* ---- Grids ----------------------------------------------------------------------------------------------
 */

static bool make_grid(struct quant_grid *g, const struct grid_spec *s)
{
    static uint8_t coordinates[MOST_POINTS * MOST_SIZE];
    const size_t map_bytes = sizeof(int32_t) * (s->shortens ? 2 * GRID_SHORT : GRID_SHORT);
    struct pool pool = {NULL, 0, 0};
    uint16_t *points = malloc(sizeof *points * (size_t)s->n_points);
    int32_t *map = malloc(map_bytes);
    if (points && map && read_points(coordinates, points, s)) {
        memset(map, 0xff, map_bytes);
        if (make_lists(&pool, map, coordinates, points, s)) {
            *g = (struct quant_grid){s->n_points, s->size, s->bits, s->values, points, map, pool.words};
            return true;
        }
    }
    free(points);
    free(map);
    free(pool.words);
    return false;
}

const struct quant_grid *quant_grid_of(enum ggml_type type)
{
    int k = 0;
    if (type == GGML_TYPE_IQ1_M)
        type = GGML_TYPE_IQ1_S;
    while (k < N_GRIDS && specs[k].type != type)
        k++;
    if (k == N_GRIDS)
        return NULL;
    const struct quant_grid *g = atomic_load_explicit(&made[k], memory_order_acquire);
    if (g)
        return g;
    pthread_mutex_lock(&making);
    g = atomic_load_explicit(&made[k], memory_order_relaxed);
    if (!g && make_grid(&grids[k], &specs[k])) {
        g = &grids[k];
        atomic_store_explicit(&made[k], g, memory_order_release);
    }
    pthread_mutex_unlock(&making);
    return g;
}
