/* project_map.c - projections on the gradients of linear maps.  SPDX-License-Identifier: MIT
 *
 * The inputs are laid out in the kernel's panels (chunk.h). Then a block of rows after the other is quantized
 * to every type, and its chunk gradients and sums are formed. All threads share each step. Where the cuts are
 * depends on shapes and the kernel alone, and each sum has one place and one order. */
#include "cost/project.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/num.h"
#include "gguf/convert.h"

/* A block has about BLOCK_WEIGHTS weights, but at least MIN_ROWS rows, lest the inputs be read too often, and
 * at most MAX_ROWS: then what the sums of a group of tokens read again and again, gradients of the block, one
 * panel of inputs and the sums themselves, fits into a core's own cache. A strip has at least STRIP_PANELS
 * panels, which share those gradients. One item quantizes at most ITEM_WEIGHTS weights or a row, to all
 * types. */
enum {
    BLOCK_WEIGHTS = 1 << 19,
    MIN_ROWS = 72,
    MAX_ROWS = 144,
    GROUP_TOKENS = 512,
    GROUP_RUNS = 32,
    STRIP_PANELS = 2,
    MAX_STRIPS = 64,
    ROUNDED_ROWS = 120, /* of a block whose rounding multiplies panels of 128 with matrices */
    ITEM_WEIGHTS = 8192,
    ITEM_TOKENS = 64
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
    const float *w;                        /* (rows of the block, n_in) */
    float *inputs;                         /* (n_panels, n_tokens, columns) */
    float *errors;                         /* (n_panels, n_tiles, n_types, rows, columns) */
    float *gradients;                      /* (n_tiles, n_tokens, rows) */
    double *parts;                         /* (n_strips, runs, n_types): the sums of this call */
    uint8_t *scratch;                      /* (threads, scratch_size) */
    size_t scratch_size;
    size_t *rounded; /* [n_rounded] the types whose codes are chosen otherwise than by quant_rows */
    size_t n_rounded;
    float *rounding;              /* (threads, 2, max_rows, n_in) */
    struct allot_error *failures; /* [n_rounded] of a block */
};

/* ---- Shapes and buffers ------------------------------------------------------------------------------- */

/* Sizes in bytes of a projector's buffers for a call. */
struct sizes {
    int64_t inputs, errors, gradients, parts, scratch, runs, weights, rounded;
};

static void lay_out(struct map_pass *pass, int64_t n_rows, int64_t n_in)
{
    const struct chunk_kernel *k = pass->projector->kernel;
    pass->n_panels = parts_of(n_in, k->columns);
    pass->panels_per_strip = most(STRIP_PANELS, parts_of(pass->n_panels, MAX_STRIPS));
    pass->n_strips = parts_of(pass->n_panels, pass->panels_per_strip);
    pass->max_rows = least(n_rows, most(MIN_ROWS, least(BLOCK_WEIGHTS / n_in, MAX_ROWS)));
    if (pass->projector->rounding != NULL)
        pass->max_rows = least(n_rows, ROUNDED_ROWS);
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
    int64_t quantizing = cache_lines(4 * pass->rows_per_item * n_in * n_types);
    return (struct sizes){.inputs = 4 * pass->n_panels * k->columns * n_tokens,
                          .errors = 4 * pass->n_panels * k->columns * pass->max_rows * n_types,
                          .gradients = 4 * pass->max_rows * n_tokens,
                          .parts = 8 * pass->n_strips * n_runs * n_types,
                          .scratch = most(quantizing, cache_lines(4 * GROUP_RUNS * n_types * k->lanes)),
                          .runs = 4 * (3 * n_runs + 2),
                          .weights = pass->projector->source != NULL ? 4 * pass->max_rows * n_in : 0,
                          .rounded = pass->projector->rounding != NULL
                                         ? 8 * pass->max_rows * n_in * pool_threads(pass->projector->pool)
                                         : 0};
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
        top.inputs = most(top.inputs, s.inputs);
        top.errors = most(top.errors, most(s.errors, projector_row_bytes(projector, t->ne[0], n_types)));
        top.gradients = most(top.gradients, s.gradients);
        top.parts = most(top.parts, s.parts);
        top.scratch = most(top.scratch, s.scratch);
        top.runs = most(top.runs, s.runs);
        top.weights = most(top.weights, s.weights);
        top.rounded = most(top.rounded, s.rounded);
    }
    /* stacks of experts are up to three at a time; a lookup takes values and its place in an order */
    int64_t sums = 3 * projector->n_chunks * (int64_t)n_types * (int64_t)sizeof(double);
    int64_t lookups = n_tokens * ((int64_t)n_types * (int64_t)sizeof(float) + 2 * (int64_t)sizeof(int64_t));
    return top.inputs + top.errors + top.gradients + top.parts + top.scratch * pool_threads(projector->pool) +
           top.runs + top.weights + top.rounded + sums + lookups;
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
    allot_status status = buffer_reserve(&projector->inputs, (size_t)s.inputs, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->errors, (size_t)s.errors, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->gradients, (size_t)s.gradients, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->parts, (size_t)s.parts, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->scratch, (size_t)s.scratch * n_threads, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->weights, (size_t)s.weights, name, err);
    if (status == ALLOT_OK)
        status = buffer_reserve(&projector->rounded, (size_t)s.rounded, name, err);
    if (status != ALLOT_OK)
        return status;
    pass->inputs = projector->inputs.data;
    pass->errors = projector->errors.data;
    pass->gradients = projector->gradients.data;
    pass->parts = projector->parts.data;
    pass->scratch = projector->scratch.data;
    pass->scratch_size = (size_t)s.scratch;
    pass->rounding = projector->rounded.data;
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

/* Rows of one tile in every type. */
static void quantize_rows(const struct map_pass *pass, int64_t tile, int64_t first, int thread)
{
    const struct net_map *map = pass->map;
    int64_t in_block = tile * pass->projector->kernel->rows + first, row = pass->block + in_block;
    int64_t n = most(0, least(pass->rows_per_item, map->n_rows - row));
    float *errors = (float *)(pass->scratch + (size_t)thread * pass->scratch_size);
    if (n > 0)
        projection_errors(pass->p, errors, pass->w + in_block * map->n_in, map->first_row + row, n);
    for (int64_t j = 0; j < (int64_t)pass->p->n_types; j++)
        for (int64_t r = 0; r < pass->rows_per_item; r++)
            store_error(pass, tile, j, first + r, r < n ? errors + (j * n + r) * map->n_in : NULL);
}

/* ---- Rounding a block otherwise -------------------------------------------------------------------------
 */

static allot_status find_rounded(struct map_pass *pass, struct allot_error *err)
{
    const struct projection *p = pass->p;
    bool *rounded = malloc((p->n_types + 1) * sizeof *rounded);
    pass->rounded = malloc((p->n_types + 1) * sizeof *pass->rounded);
    pass->failures = malloc((p->n_types + 1) * sizeof *pass->failures);
    allot_status status = rounded && pass->rounded && pass->failures
                              ? projection_rounded(rounded, p, pass->projector->rounding, err)
                              : allot_fail_memory(err, p->n_types * sizeof *pass->failures, p->tensor->name);
    for (size_t j = 0; j < p->n_types && status == ALLOT_OK; j++)
        if (rounded[j])
            pass->rounded[pass->n_rounded++] = j;
    free(rounded);
    return status;
}

/* All rows of the block in one of these types, in place of the errors that quantize_rows found. */
static void round_item(void *user, int64_t item, int thread)
{
    const struct map_pass *pass = user;
    const size_t j = pass->rounded[item];
    const int64_t n_in = pass->map->n_in, n = least(pass->max_rows, pass->map->n_rows - pass->block),
                  rows = pass->projector->kernel->rows;
    float *errors = pass->rounding + 2 * thread * pass->max_rows * n_in;
    struct allot_error *err = &pass->failures[item];
    bool done;
    *err = (struct allot_error){0};
    if (projection_round(&done, pass->p, j, pass->projector->rounding, errors, errors + pass->max_rows * n_in,
                         pass->w, pass->map->first_row + pass->block, n, err) != ALLOT_OK ||
        !done)
        return;
    for (int64_t r = 0; r < n; r++)
        store_error(pass, r / rows, (int64_t)j, r % rows, errors + r * n_in);
}

static allot_status round_block(struct map_pass *pass, struct allot_error *err)
{
    pool_run(pass->projector->pool, (int64_t)pass->n_rounded, round_item, pass);
    for (size_t i = 0; i < pass->n_rounded; i++)
        if (pass->failures[i].status != ALLOT_OK) {
            *err = pass->failures[i];
            return err->status;
        }
    return ALLOT_OK;
}

/* ---- Weights of a block ---------------------------------------------------------------------------------
 */

/* Finds the weights of the block. */
static allot_status find_weights(struct map_pass *pass, struct allot_error *err)
{
    const struct net_map *map = pass->map;
    const struct projector *projector = pass->projector;
    pass->w = map->w + pass->block * map->n_in;
    if (projector->source == NULL)
        return ALLOT_OK;
    pass->w = projector->weights.data;
    return gguf_tensor_to_f32(projector->source, map->tensor, map->first_row + pass->block,
                              least(pass->max_rows, map->n_rows - pass->block), projector->weights.data,
                              projector->pool, err);
}

static int64_t quantize_items(const struct map_pass *pass)
{
    return pass->n_tiles * (pass->projector->kernel->rows / pass->rows_per_item);
}

static void quantize_item(void *user, int64_t item, int thread)
{
    const struct map_pass *pass = user;
    int64_t per_tile = pass->projector->kernel->rows / pass->rows_per_item;
    quantize_rows(pass, item / per_tile, item % per_tile * pass->rows_per_item, thread);
}

/* ---- Operands in the kernel's layout ---------------------------------------------------------------- */

/* Columns [0, n) of tokens [first, end) of a matrix with rows n_from apart to slices (n_tokens, width) of
 * width columns each, the last filled up with zeros. */
static void slice_tokens(float *slices, int64_t width, const float *from, int64_t n_from, int64_t n,
                         int64_t first, int64_t end, int64_t n_tokens)
{
    for (int64_t t = first; t < end; t++) {
        for (int64_t column = 0; column < n; column += width) {
            float *to = slices + (column * n_tokens + t * width);
            int64_t given = least(width, n - column);
            memcpy(to, from + t * n_from + column, sizeof(float) * (size_t)given);
            memset(to + given, 0, sizeof(float) * (size_t)(width - given));
        }
    }
}

static void input_item(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct map_pass *pass = user;
    const struct net_map *map = pass->map;
    int64_t first = item * ITEM_TOKENS, end = least(first + ITEM_TOKENS, map->n_tokens);
    slice_tokens(pass->inputs, pass->projector->kernel->columns, map->x, map->n_in, map->n_in, first, end,
                 map->n_tokens);
}

static void gradient_item(void *user, int64_t item, int thread)
{
    (void)thread;
    const struct map_pass *pass = user;
    const struct net_map *map = pass->map;
    int64_t first = item * ITEM_TOKENS, end = least(first + ITEM_TOKENS, map->n_tokens);
    slice_tokens(pass->gradients, pass->projector->kernel->rows, map->g + pass->block, map->n_rows,
                 least(pass->max_rows, map->n_rows - pass->block), first, end, map->n_tokens);
}

/* ---- Sums of a block --------------------------------------------------------------------------------- */

/* Sum of the lanes of one sum. */
static float fold(const float *lanes, int n)
{
    float half[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int l = 0; l < least(8, n); l++)
            half[l] += lanes[i + l];
    return ((half[0] + half[4]) + (half[1] + half[5])) + ((half[2] + half[6]) + (half[3] + half[7]));
}

/* A strip of panels and a group of tokens: all rows of the block. */
static void sum_item(void *user, int64_t item, int thread)
{
    const struct map_pass *pass = user;
    const struct chunk_kernel *k = pass->projector->kernel;
    const struct runs *r = &pass->runs;
    int64_t n_types = (int64_t)pass->p->n_types, n_tokens = pass->map->n_tokens;
    int64_t strip = item % pass->n_strips, group = item / pass->n_strips;
    int64_t run = r->groups[group], n_runs = r->groups[group + 1] - run, first = r->starts[run];
    int64_t panel = strip * pass->panels_per_strip;
    int64_t last = least(panel + pass->panels_per_strip, pass->n_panels);
    float *sums = (float *)(pass->scratch + (size_t)thread * pass->scratch_size);
    memset(sums, 0, sizeof(float) * (size_t)(n_runs * n_types * k->lanes));
    for (; panel < last; panel++)
        for (int64_t tile = 0; tile < pass->n_tiles; tile++)
            k->tile(sums, pass->gradients + (tile * n_tokens + first) * k->rows,
                    pass->inputs + (panel * n_tokens + first) * k->columns,
                    pass->errors + (panel * pass->n_tiles + tile) * n_types * k->rows * k->columns, n_runs,
                    r->starts + run, n_types);
    double *parts = pass->parts + (strip * r->n + run) * n_types;
    for (int64_t i = 0; i < n_runs * n_types; i++)
        parts[i] += fold(sums + i * k->lanes, k->lanes);
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

static allot_status add_blocks(struct map_pass *pass, struct allot_error *err)
{
    struct projector *projector = pass->projector;
    const struct net_map *map = pass->map;
    double start = seconds_now(), quantizing = 0;
    int64_t token_items = parts_of(map->n_tokens, ITEM_TOKENS);
    pool_run(projector->pool, token_items, input_item, pass);
    for (; pass->block < map->n_rows; pass->block += pass->max_rows) {
        allot_status status = find_weights(pass, err);
        if (status != ALLOT_OK)
            return status;
        pass->n_tiles = parts_of(least(pass->max_rows, map->n_rows - pass->block), projector->kernel->rows);
        double start_block = seconds_now();
        pool_run(projector->pool, quantize_items(pass), quantize_item, pass);
        status = round_block(pass, err);
        if (status != ALLOT_OK)
            return status;
        quantizing += seconds_now() - start_block;
        pool_run(projector->pool, token_items, gradient_item, pass);
        pool_run(projector->pool, pass->n_strips * pass->runs.n_groups, sum_item, pass);
    }
    add_parts(pass);
    projector->seconds_quantize += quantizing;
    projector->seconds_product += seconds_now() - start - quantizing;
    return ALLOT_OK;
}

allot_status projection_add_map(struct projection *p, struct projector *projector, const struct net_map *map,
                                struct allot_error *err)
{
    struct map_pass pass = {.p = p, .projector = projector, .map = map};
    lay_out(&pass, map->n_rows, map->n_in);
    allot_status status = find_runs(&pass, err);
    if (status == ALLOT_OK)
        status = reserve(&pass, err);
    if (status == ALLOT_OK)
        status = find_rounded(&pass, err);
    if (status == ALLOT_OK)
        status = add_blocks(&pass, err);
    if (status == ALLOT_OK)
        p->seen[map->first_row / p->tensor->ne[1]] = true;
    free(pass.rounded);
    free(pass.failures);
    return status;
}
