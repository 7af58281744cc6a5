/* speed_table.c - decode time per byte of each type on one machine.  SPDX-License-Identifier: MIT */
#include "speed_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/pool.h"
#include "base/rng.h"
#include "cost/version.h"
#include "measure/speed.h"
#include "quant/quant.h"

/* Rows as wide as those of common models, which every block divides; so many that look-ups do not repeat
 * soon. */
enum { WIDTH = 4096, N_ROWS = 64 };

static const double SECONDS_PER_TYPE = 0.25;

static const char file_format[] = "allot speed table 1";

/* ---- Measuring ---------------------------------------------------------------------------------- */

/* The same normal weights in each type, with even importances. */
static allot_status quantize_rows(struct speed_kind *kind, enum ggml_type type, const float *weights,
                                  const float *importances, struct allot_error *err)
{
    const size_t bytes = N_ROWS * ggml_row_size(type, WIDTH);
    void *rows = malloc(bytes);
    *kind = (struct speed_kind){.type = type, .rows = rows, .n_rows = N_ROWS};
    if (!rows)
        return allot_fail_memory(err, bytes, "rows");
    if (quant_rows(type, weights, rows, N_ROWS, WIDTH, importances) == QUANT_INFEASIBLE)
        return allot_fail(err, ALLOT_ERR_INTERNAL, "random weights do not become %s", ggml_type_name(type));
    return ALLOT_OK;
}

static allot_status make_kinds(struct speed_kind *kinds, size_t *n, const bool *types,
                               const struct allot_progress *progress, struct allot_error *err)
{
    enum ggml_type list[GGML_TYPE_COUNT];
    size_t n_list = 0, n_all;
    const struct quant_type *all = quant_types(&n_all);
    float *weights = malloc(sizeof *weights * (N_ROWS + 1) * WIDTH), *importances = weights;
    if (!weights)
        return allot_fail_memory(err, sizeof *weights * (N_ROWS + 1) * WIDTH, "rows");
    importances += N_ROWS * WIDTH;
    for (size_t i = 0; i < N_ROWS * WIDTH; i++)
        weights[i] = (float)(0.02 * rng_normal(1, i));
    for (size_t i = 0; i < WIDTH; i++)
        importances[i] = 1;
    for (size_t i = 0; i < n_all; i++)
        if (types[all[i].type])
            list[n_list++] = all[i].type;
    allot_status status = quant_prepare(list, n_list, progress, err);
    for (*n = 0; status == ALLOT_OK && *n < n_list; ++*n)
        status = quantize_rows(&kinds[*n], list[*n], weights, importances, err);
    free(weights);
    return status;
}

/* 0: as many threads as a pool has by default. */
static allot_status count_threads(int *n, int wanted, struct allot_error *err)
{
    struct pool *pool = NULL;
    allot_status status = pool_new(&pool, wanted, err);
    if (status == ALLOT_OK)
        *n = pool_threads(pool);
    pool_free(pool);
    return status;
}

allot_status speed_table_measure(struct speed_table *table, const bool types[static GGML_TYPE_COUNT],
                                 int64_t matrix_bytes, int n_threads, const struct allot_progress *progress,
                                 struct allot_error *err)
{
    struct speed_kind kinds[GGML_TYPE_COUNT] = {0};
    struct speed_options options = {
        .width = WIDTH,
        .bytes = matrix_bytes > 0 ? matrix_bytes : speed_default_bytes(),
        .duration = SECONDS_PER_TYPE,
    };
    size_t n = 0;
    *table = (struct speed_table){.matrix_bytes = options.bytes};
    allot_status status = count_threads(&options.n_threads, n_threads, err);
    if (status == ALLOT_OK)
        status = make_kinds(kinds, &n, types, progress, err);
    if (status == ALLOT_OK)
        status = speed_measure(kinds, n, &options, progress, err);
    for (size_t i = 0; status == ALLOT_OK && i < n; i++)
        table->ns_per_byte[kinds[i].type] = kinds[i].ns_per_byte;
    for (size_t i = 0; i < GGML_TYPE_COUNT; i++)
        free((void *)kinds[i].rows);
    table->n_threads = options.n_threads;
    return status;
}

/* ---- The file ------------------------------------------------------------------------------------ */

static allot_status read_entries(struct speed_table *table, const json_t *entries, struct allot_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)entries, name, value)
    {
        const struct quant_type *type = quant_type_by_name(name);
        const double number = json_number_value(value);
        if (!type)
            return allot_fail(err, ALLOT_ERR_FORMAT, "%s: '%s' is no type; there are %s", table->path, name,
                              quant_type_names());
        if (!json_is_number(value) || !isfinite(number) || number <= 0)
            return allot_fail(err, ALLOT_ERR_FORMAT,
                              "%s: the nanoseconds per byte of %s are not a number above 0", table->path,
                              name);
        table->ns_per_byte[type->type] = number;
    }
    return ALLOT_OK;
}

allot_status speed_table_read(struct speed_table *table, const char *path, struct allot_error *err)
{
    struct file_map map;
    json_error_t cause;
    *table = (struct speed_table){.path = path};
    if (file_map_open(&map, path, err) != ALLOT_OK)
        return err->status;
    json_t *document = json_loadb((const char *)map.data, map.size, JSON_REJECT_DUPLICATES, &cause);
    file_map_close(&map);
    if (!document)
        return allot_fail(err, ALLOT_ERR_FORMAT, "%s: no JSON (line %d: %s)", path, cause.line, cause.text);
    const json_t *entries = json_object_get(document, "ns_per_byte");
    allot_status status =
        json_is_object(entries)
            ? read_entries(table, entries, err)
            : allot_fail(err, ALLOT_ERR_FORMAT,
                         "%s: no object \"ns_per_byte\" in it; 'allot speed -o FILE' writes a speed table",
                         path);
    json_decref(document);
    return status;
}

/* "model name" of the first processor, or "unknown". */
static json_t *cpu_json(void)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    json_t *name = NULL;
    while (file && !name && fgets(line, sizeof line, file)) {
        const char *at = strncmp(line, "model name", 10) == 0 ? strstr(line, ": ") : NULL;
        line[strcspn(line, "\n")] = '\0';
        name = at ? json_text(at + 2) : NULL;
    }
    if (file)
        fclose(file);
    return name ? name : json_text("unknown");
}

json_t *speed_table_json(const struct speed_table *table)
{
    size_t n;
    const struct quant_type *types = quant_types(&n);
    json_t *document = json_object(), *entries = json_object();
    for (size_t i = 0; i < n; i++)
        if (table->ns_per_byte[types[i].type] > 0)
            json_put(entries, types[i].name, json_number(table->ns_per_byte[types[i].type]));
    json_put(document, "format", json_text(file_format));
    json_put(document, "cpu", cpu_json());
    json_put(document, "threads", json_integer(table->n_threads));
    json_put(document, "matrix_bytes", json_integer(table->matrix_bytes));
    json_put(document, "version", json_text(cost_version()));
    json_put(document, "ns_per_byte", entries);
    return document;
}

allot_status speed_table_write(const struct speed_table *table, const char *path, struct allot_error *err)
{
    json_t *document = speed_table_json(table);
    char *text = document ? json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
    struct strbuf sb = {0};
    strbuf_addf(&sb, "%s\n", text ? text : "");
    allot_status status = text ? strbuf_check(&sb, err) : allot_fail_memory(err, 4096, "a speed table");
    if (status == ALLOT_OK)
        status = file_write_all(path, sb.data, sb.len, err);
    strbuf_release(&sb);
    free(text);
    json_decref(document);
    return status;
}
