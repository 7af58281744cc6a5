/* project_map.c - projections on the gradients of linear maps.  SPDX-License-Identifier: MIT
 *
 * A block of rows after the other, in two steps that all threads share: quantize it to every type, then form
 * its chunk gradients and sums. Both steps cut the block into tiles of the kernel's shape (chunk.h). Where
 * the cuts are depends on shapes and the kernel alone, and each sum has one place and one order. */
#include "cost/project.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* A block has about BLOCK_WEIGHTS weights, so that the errors of all types stay within the last level of
 * cache or near it, and at least BLOCK_ROWS rows, so that the inputs are not read too often. A thread's part
 * of the inputs (a panel: the kernel's columns of a group of tokens) and its sums fit into its second level.
 * One item quantizes at most ITEM_WEIGHTS weights or a row. */
enum {
    BLOCK_WEIGHTS = 1 << 18,
    BLOCK_ROWS = 72,
    GROUP_TOKENS = 1024,
    GROUP_RUNS = 64,
    MAX_STRIPS = 64,
    ITEM_WEIGHTS = 16384
};

/* Tokens of a call that belong to one chunk, or a part of them; they follow one another. */
struct runs {
    int64_t n, n_groups;
    int32_t *starts; /* [n + 1] the first token of each run, and their number */
    int32_t *chunks; /* [n] */
    int32_t *groups; /* [n_groups + 1] the first run of each group, and their number */
};

struct map_pass {
    struct projection *p;
    struct projector *projector;
    const struct net_map *map;
    struct runs runs;
    int64_t n_panels, panels_per_strip, n_strips;
    int64_t max_rows;                      /* of a block; whole tiles */
    int64_t block, n_tiles, rows_per_item; /* the block in hand: its first row and its tiles */
    float *errors;                         /* (n_panels, n_tiles, n_types, rows, columns) */
    float *gradients;                      /* (n_tiles, n_tokens, rows) */
    double *parts;                         /* (n_strips, runs, n_types): the sums of this call */
    uint8_t *scratch;                      /* (threads, scratch_size) */
    size_t scratch_size;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t parts_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* ---- Shapes and buffers ------------------------------------------------------------------------------- */

/* Sizes in bytes of a projector's buffers for a call. */
struct sizes {
    int64_t errors, gradients, parts, scratch, runs;
};

static void lay_out(struct map_pass *pass, int64_t n_rows, int64_t n_in)
{
    const struct chunk_kernel *k = pass->projector->kernel;
    pass->n_panels = parts_of(n_in, k->columns);
    pass->panels_per_strip = parts_of(pass->n_panels, MAX_STRIPS);
    pass->n_strips = parts_of(pass->n_panels, pass->panels_per_strip);
    pass->max_rows = least(n_rows, most(BLOCK_WEIGHTS / n_in, BLOCK_ROWS));
    pass->max_rows = parts_of(pass->max_rows, k->rows) * k->rows;
    pass->rows_per_item = k->rows; /* divided until an item is small: 12, 6, 3, 1 */
    while (pass->rows_per_item > 1 && pass->rows_per_item * n_in > ITEM_WEIGHTS)
        pass->rows_per_item /= pass->rows_per_item % 2 == 0 ? 2 : pass->rows_per_item;
}

static int64_t cache_lines(int64_t bytes)
{
    return parts_of(bytes, 64) * 64;
}

static struct sizes sizes_of(const struct map_pass *pass, int64_t n_in, int64_t n_types, int64_t n_tokens,
                             int64_t n_runs)
{
    const struct chunk_kernel *k = pass->projector->kernel;
    int64_t quantizing = cache_lines(4 * pass->rows_per_item * n_in) * 2;
    int64_t summing =
        cache_lines(4 * GROUP_RUNS * n_types * k->lanes) + cache_lines(4 * GROUP_TOKENS * k->columns);
    return (struct sizes){.errors = 4 * pass->n_panels * k->columns * pass->max_rows * n_types,
                          .gradients = 4 * pass->max_rows * n_tokens,
                          .parts = 8 * pass->n_strips * n_runs * n_types,
                          .scratch = most(quantizing, summing),
                          .runs = 4 * (3 * n_runs + 2)};
}

int64_t projector_bytes(const struct projector *projector, const struct gguf_model *model, size_t n_types)
{
    struct sizes top = {0};
    struct map_pass pass = {.projector = (struct projector *)(uintptr_t)projector};
    int64_t n_tokens = projector->chunk * projector->n_chunks;
    int64_t n_runs = projector->n_chunks * parts_of(projector->chunk, GROUP_TOKENS);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *t = &model->tensors[i];
        if (!gguf_tensor_quantizable(t))
            continue;
        lay_out(&pass, t->ne[1], t->ne[0]);
        struct sizes s = sizes_of(&pass, t->ne[0], (int64_t)n_types, n_tokens, n_runs);
        top.errors = most(top.errors, s.errors);
        top.gradients = most(top.gradients, s.gradients);
        top.parts = most(top.parts, s.parts);
        top.scratch = most(top.scratch, s.scratch);
        top.runs = most(top.runs, s.runs);
    }
    /* stacks of experts are up to three at a time; a lookup takes values and its place in an order */
    int64_t sums = 3 * projector->n_chunks * (int64_t)n_types * (int64_t)sizeof(double);
    int64_t lookups = n_tokens * ((int64_t)n_types * (int64_t)sizeof(float) + 2 * (int64_t)sizeof(int64_t));
    return top.errors + top.gradients + top.parts + top.scratch * pool_threads(projector->pool) + top.runs +
           sums + lookups;
}

/* Chunk of the i-th token of the call. */
static int32_t chunk_of(const struct map_pass *pass, int64_t i)
{
    const int32_t *tokens = pass->map->tokens;
    return (int32_t)((tokens != NULL ? tokens[i] : i) / pass->projector->chunk);
}

/* True if the i-th token begins a run, the last of which began with token `start`. */
static bool begins_run(const struct map_pass *pass, int64_t i, int64_t start)
{
    return i == 0 || i - start == GROUP_TOKENS || chunk_of(pass, i) != chunk_of(pass, i - 1);
}

static allot_status find_runs(struct map_pass *pass, struct allot_error *err)
{
    int64_t n_tokens = pass->map->n_tokens, start = 0;
    struct runs *r = &pass->runs;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (begins_run(pass, i, start)) {
            start = i;
            r->n++;
        }
    }
    allot_status status = buffer_reserve(&pass->projector->runs, sizeof(int32_t) * (size_t)(3 * r->n + 2),
                                         "runs of tokens", err);
    if (status != ALLOT_OK)
        return status;
    r->starts = pass->projector->runs.data;
    r->chunks = r->starts + r->n + 1;
    r->groups = r->chunks + r->n;
    r->n = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (begins_run(pass, i, start)) {
            start = i;
            r->starts[r->n] = (int32_t)i;
            r->chunks[r->n++] = chunk_of(pass, i);
        }
    }
    r->starts[r->n] = (int32_t)n_tokens;
    for (int64_t run = 0, first = 0; run < r->n; run++) {
        if (run == 0 || run - first == GROUP_RUNS || r->starts[run + 1] - r->starts[first] > GROUP_TOKENS) {
            first = run;
            r->groups[r->n_groups++] = (int32_t)run;
        }
    }
    r->groups[r->n_groups] = (int32_t)r->n;
    return ALLOT_OK;
}

static allot_status reserve(struct map_pass *pass, struct allot_error *err)
{
    struct projector *projector = pass->projector;
    const char *name = pass->p->tensor->name;
    struct sizes s =
        sizes_of(pass, pass->map->n_in, (int64_t)pass->p->n_types, pass->map->n_tokens, pass->runs.n);
    size_t n_threads = (size_t)pool_threads(projector->pool);
    allot_status status = buffer_reserve(&projector->errors, (size_t)s.errors, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->gradients, (size_t)s.gradients, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->parts, (size_t)s.parts, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->scratch, (size_t)s.scratch * n_threads, name, err);
    if (status != ALLOT_OK)
        return status;
    pass->errors = projector->errors.data;
    pass->gradients = projector->gradients.data;
    pass->parts = projector->parts.data;
    pass->scratch = projector->scratch.data;
    pass->scratch_size = (size_t)s.scratch;
    memset(pass->parts, 0, (size_t)s.parts);
    return ALLOT_OK;
}

/* ---- Quantizing a block ----------------------------------------------------------------------------- */

/* One row of a tile, in the kernel's layout; row NULL: zeros. */
static void store_error(const struct map_pass *pass, int64_t tile, int64_t j, int64_t r, const float *row)
{
    const struct chunk_kernel *k = pass->projector->kernel;
    int64_t n_types = (int64_t)pass->p->n_types, n_in = pass->map->n_in;
    for (int64_t panel = 0; panel < pass->n_panels; panel++) {
        float *to =
            pass->errors + (((panel * pass->n_tiles + tile) * n_types + j) * k->rows + r) * k->columns;
        int64_t n = row != NULL ? least(k->columns, n_in - panel * k->columns) : 0;
        if (n > 0)
            memcpy(to, row + panel * k->columns, sizeof(float) * (size_t)n);
        memset(to + n, 0, sizeof(float) * (size_t)(k->columns - n));
    }
}

/* Rows of one tile in one type. */
static void quantize_item(const struct map_pass *pass, int64_t tile, int64_t first, int64_t j, int thread)
{
    const struct net_map *map = pass->map;
    int64_t row = pass->block + tile * pass->projector->kernel->rows + first;
    int64_t n = most(0, least(pass->rows_per_item, map->n_rows - row));
    uint8_t *bytes = pass->scratch + (size_t)thread * pass->scratch_size;
    float *error = (float *)(bytes + pass->scratch_size / 2);
    if (n > 0)
        projection_error(pass->p, (size_t)j, error, bytes, map->w + row * map->n_in, map->first_row + row, n);
    for (int64_t r = 0; r < pass->rows_per_item; r++)
        store_error(pass, tile, j, first + r, r < n ? error + r * map->n_in : NULL);
}

/* The output gradients of one tile's rows, token by token. */
static void gather_gradients(const struct map_pass *pass, int64_t tile)
{
    const struct net_map *map = pass->map;
    int64_t rows = pass->projector->kernel->rows, row = pass->block + tile * rows;
    int64_t n = least(rows, map->n_rows - row);
    float *to = pass->gradients + tile * map->n_tokens * rows;
    for (int64_t t = 0; t < map->n_tokens; t++, to += rows) {
        const float *from = map->g + t * map->n_rows + row;
        for (int64_t r = 0; r < rows; r++)
            to[r] = r < n ? from[r] : 0;
    }
}

static int64_t quantize_items(const struct map_pass *pass)
{
    return pass->n_tiles * (int64_t)pass->p->n_types * (pass->projector->kernel->rows / pass->rows_per_item);
}

static void prepare_item(void *user, int64_t item, int thread)
{
    const struct map_pass *pass = user;
    int64_t per_tile = pass->projector->kernel->rows / pass->rows_per_item;
    int64_t per_type = pass->n_tiles * per_tile;
    if (item >= quantize_items(pass))
        gather_gradients(pass, item - quantize_items(pass));
    else
        quantize_item(pass, item % per_type / per_tile, item % per_tile * pass->rows_per_item,
                      item / per_type, thread);
}

/* ---- Sums of a block --------------------------------------------------------------------------------- */

/* x (tokens of the group, columns): one panel of the inputs. */
static void gather_inputs(const struct map_pass *pass, float *x, int64_t panel, int64_t first, int64_t end)
{
    int64_t columns = pass->projector->kernel->columns, n_in = pass->map->n_in;
    int64_t n = least(columns, n_in - panel * columns);
    const float *from = pass->map->x + first * n_in + panel * columns;
    for (int64_t t = first; t < end; t++, from += n_in, x += columns) {
        memcpy(x, from, sizeof(float) * (size_t)n);
        memset(x + n, 0, sizeof(float) * (size_t)(columns - n));
    }
}

/* A strip of panels and a group of tokens: all rows of the block. */
static void sum_item(void *user, int64_t item, int thread)
{
    const struct map_pass *pass = user;
    const struct chunk_kernel *k = pass->projector->kernel;
    const struct runs *r = &pass->runs;
    int64_t n_types = (int64_t)pass->p->n_types, n_tokens = pass->map->n_tokens;
    int64_t strip = item / r->n_groups, run = r->groups[item % r->n_groups];
    int64_t n_runs = r->groups[item % r->n_groups + 1] - run, first = r->starts[run];
    float *x = (float *)(pass->scratch + (size_t)thread * pass->scratch_size);
    float *sums = x + GROUP_TOKENS * k->columns;
    int64_t panel = strip * pass->panels_per_strip;
    int64_t last = least(panel + pass->panels_per_strip, pass->n_panels);
    memset(sums, 0, sizeof(float) * (size_t)(n_runs * n_types * k->lanes));
    for (; panel < last; panel++) {
        gather_inputs(pass, x, panel, first, r->starts[run + n_runs]);
        for (int64_t tile = 0; tile < pass->n_tiles; tile++)
            k->tile(sums, pass->gradients + (tile * n_tokens + first) * k->rows, x,
                    pass->errors + (panel * pass->n_tiles + tile) * n_types * k->rows * k->columns, n_runs,
                    r->starts + run, n_types);
    }
    double *parts = pass->parts + (strip * r->n + run) * n_types;
    for (int64_t i = 0; i < n_runs * n_types; i++)
        for (int lane = 0; lane < k->lanes; lane++)
            parts[i] += sums[i * k->lanes + lane];
}

static void add_parts(const struct map_pass *pass)
{
    const struct runs *r = &pass->runs;
    int64_t n_types = (int64_t)pass->p->n_types;
    for (int64_t strip = 0; strip < pass->n_strips; strip++)
        for (int64_t run = 0; run < r->n; run++)
            for (int64_t j = 0; j < n_types; j++)
                pass->p->u[r->chunks[run] * n_types + j] += pass->parts[(strip * r->n + run) * n_types + j];
}

allot_status projection_add_map(struct projection *p, struct projector *projector, const struct net_map *map,
                                struct allot_error *err)
{
    struct map_pass pass = {.p = p, .projector = projector, .map = map};
    lay_out(&pass, map->n_rows, map->n_in);
    allot_status status = find_runs(&pass, err);
    if (status == ALLOT_OK)
        status = reserve(&pass, err);
    if (status != ALLOT_OK)
        return status;
    for (; pass.block < map->n_rows; pass.block += pass.max_rows) {
        double start = seconds_now();
        pass.n_tiles = parts_of(least(pass.max_rows, map->n_rows - pass.block), projector->kernel->rows);
        pool_run(projector->pool, quantize_items(&pass) + pass.n_tiles, prepare_item, &pass);
        double middle = seconds_now();
        pool_run(projector->pool, pass.n_strips * pass.runs.n_groups, sum_item, &pass);
        projector->seconds_quantize += middle - start;
        projector->seconds_product += seconds_now() - middle;
    }
    add_parts(&pass);
    p->seen[map->first_row / p->tensor->ne[1]] = true;
    return ALLOT_OK;
}
