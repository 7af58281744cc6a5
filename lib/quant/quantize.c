/* quantize.c - writes a quantized GGUF, resumably.  SPDX-License-Identifier: MIT
 *
 * A tensor is cut into blocks of whole rows of one expert; threads take a block each, widen it to F32 (in
 * memory of their own), quantize it and write it where it belongs. Memory does not grow with the tensors. */
#include "quant/quantize.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "quant/checksum.h"
#include "quant/compensate.h"
#include "quant/partial.h"
#include "quant/quant.h"

enum {
    BLOCK_WEIGHTS = 256 * 1024, /* per row block, unless a single row is longer */
    BLOCKS_PER_THREAD = 8,      /* between two progress reports */
    COPY_BYTES = 1024 * 1024,
};

/* ---- The header -------------------------------------------------------------------------------------- */

/* llama-quantize's keys: the input's, then version, file type and the caller's; no split.* keys, since the
 * output is one file. A general.alignment other than the one used here would make the file unreadable. */
static allot_status build_header(const struct quantize_job *job, struct strbuf *sb, int64_t *offsets,
                                 int64_t *file_size, struct allot_error *err)
{
    const struct gguf_model *model = job->model;
    struct gguf_header h = {0};
    for (int64_t i = 0; i < model->n_kv; i++)
        gguf_header_copy_kv(&h, &model->kv[i]);
    gguf_header_set_u32(&h, "general.quantization_version", GGML_QNT_VERSION);
    gguf_header_set_u32(&h, "general.file_type", job->file_type);
    gguf_header_remove(&h, "split.no");
    gguf_header_remove(&h, "split.count");
    gguf_header_remove(&h, "split.tensors.count");
    if (model->alignment != GGUF_WRITER_ALIGNMENT)
        gguf_header_remove(&h, "general.alignment");
    for (size_t i = 0; i < job->n_keys; i++) {
        const struct quantize_key *k = &job->keys[i];
        if (k->str)
            gguf_header_set_str(&h, k->key, k->str);
        else
            gguf_header_set_u32(&h, k->key, k->u32);
    }
    for (int64_t i = 0; i < model->n_tensors; i++)
        gguf_header_add_tensor(&h, model->tensors[i].name, model->tensors[i].ne, job->types[i]);
    allot_status status = gguf_header_encode(&h, sb, offsets, file_size, err);
    gguf_header_release(&h);
    return status;
}

allot_status quantize_file_size(const struct quantize_job *job, int64_t *bytes, struct allot_error *err)
{
    struct strbuf sb = {0};
    int64_t size = 0;
    allot_status status = build_header(job, &sb, NULL, &size, err);
    strbuf_release(&sb);
    if (!status)
        *bytes = size;
    return status;
}

/* ---- Checks before any work ---------------------------------------------------------------------- */

static allot_status check_tensor(const struct quantize_job *job, int64_t index, struct allot_error *err)
{
    const struct gguf_model *model = job->model;
    const struct gguf_tensor *t = &model->tensors[index];
    const enum ggml_type type = job->types[index];
    if (type == t->type)
        return ALLOT_OK;
    const struct quant_type *qt = quant_type_find(type);
    if (!qt)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: tensor %s: type %d cannot be written; known are %s",
                          model->path, t->name, (int)type, quant_type_names());
    if (!ggml_get_type_traits(t->type)->to_float && t->type != GGML_TYPE_F32)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s: %s cannot be converted to %s",
                          model->path, t->name, ggml_type_name(t->type), qt->name);
    if (!quant_type_fits(type, t->ne[0]))
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "%s: tensor %s: rows of %lld are no multiple of the %d of %s", model->path, t->name,
                          (long long)t->ne[0], qt->block, qt->name);
    if (t->ne[3] != 1)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s: tensor %s: 4 dimensions cannot be quantized",
                          model->path, t->name);
    if (!(job->imatrix && job->imatrix[index]) && quant_type_needs_imatrix(type, t->name))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: tensor %s: %s needs an importance matrix entry",
                          model->path, t->name, qt->name);
    return ALLOT_OK;
}

static allot_status check_job(const struct quantize_job *job, const struct allot_progress *progress,
                              struct allot_error *err)
{
    const struct gguf_model *model = job->model;
    for (int i = 0; i < model->n_shards; i++) {
        const char *input = gguf_model_shard_path(model, i);
        if (file_same(job->out_path, input))
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s is the input %s itself: choose another output",
                              job->out_path, input);
    }
    int64_t n_again = 0, first = -1;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        allot_status status = check_tensor(job, i, err);
        if (status)
            return status;
        if (job->types[i] != model->tensors[i].type && ggml_is_quantized(model->tensors[i].type)) {
            first = first < 0 ? i : first;
            n_again++;
        }
    }
    if (n_again)
        allot_note(progress,
                   "%s: %lld tensors are quantized already (%s is %s); quantizing them again loses more than "
                   "starting from the original",
                   model->path, (long long)n_again, model->tensors[first].name,
                   ggml_type_name(model->tensors[first].type));
    return ALLOT_OK;
}

allot_status quantize_check(const struct quantize_job *job, struct allot_error *err)
{
    return check_job(job, NULL, err);
}

/* ---- One tensor ---------------------------------------------------------------------------------- */

struct thread_scratch {
    float *weights;
    uint8_t *bytes;
};

struct tensor_work {
    const struct quantize_job *job;
    const struct gguf_tensor *tensor;
    enum ggml_type type;
    const float *imatrix;
    bool rounded; /* by job->rounding */
    struct partial *partial;
    int64_t offset; /* of the tensor's data in the output */
    struct checksum *checksum;
    struct thread_scratch *scratch;
    int64_t block_rows, blocks_per_matrix, n_blocks;
    int64_t first_block; /* of the batch that the pool is working on */
    atomic_bool floored;
    /* The error of the first block in order, so that the message does not depend on the threads. */
    pthread_mutex_t lock;
    int64_t failed_block;
    struct allot_error error;
};

static void record_error(struct tensor_work *w, int64_t block, const struct allot_error *error)
{
    pthread_mutex_lock(&w->lock);
    if (block < w->failed_block) {
        w->failed_block = block;
        w->error = *error;
    }
    pthread_mutex_unlock(&w->lock);
}

static bool failed_before(struct tensor_work *w, int64_t block)
{
    pthread_mutex_lock(&w->lock);
    const bool failed = w->failed_block < block;
    pthread_mutex_unlock(&w->lock);
    return failed;
}

static allot_status copy_rows(struct tensor_work *w, int64_t row, int64_t n, struct allot_error *err)
{
    const struct gguf_tensor *t = w->tensor;
    const uint8_t *src = t->data + row * t->row_bytes;
    if (quant_type_find(t->type)) {
        for (int64_t i = 0; i < n; i++)
            if (!quant_row_valid(t->type, src + i * t->row_bytes, (size_t)t->row_bytes))
                return allot_fail(err, ALLOT_ERR_NUMERIC,
                                  "%s: tensor %s, row %lld: NaN or Inf among its values", w->job->model->path,
                                  t->name, (long long)(row + i));
    }
    return partial_write(w->partial, src, (size_t)(n * t->row_bytes), w->offset + row * t->row_bytes, err);
}

static allot_status convert_rows(struct tensor_work *w, int64_t row, int64_t n,
                                 struct thread_scratch *scratch, struct allot_error *err)
{
    const struct gguf_tensor *t = w->tensor;
    const int64_t n_per_row = t->ne[0];
    const int64_t out_row_bytes = (int64_t)ggml_row_size(w->type, n_per_row);
    const float *imatrix = w->imatrix ? w->imatrix + row / t->ne[1] * n_per_row : NULL;
    allot_status status =
        quant_to_f32(t->type, t->data + row * t->row_bytes, scratch->weights, n * n_per_row, err);
    if (status)
        return status;
    const int64_t bad = quant_first_nonfinite(scratch->weights, n * n_per_row);
    if (bad >= 0)
        return allot_fail(err, ALLOT_ERR_NUMERIC, "%s: tensor %s, row %lld: weight %lld is %g",
                          w->job->model->path, t->name, (long long)(row + bad / n_per_row),
                          (long long)(bad % n_per_row), (double)scratch->weights[bad]);
    switch (quant_rows(w->type, scratch->weights, scratch->bytes, n, n_per_row, imatrix)) {
    case QUANT_OK:
        break;
    case QUANT_FLOORED:
        atomic_store(&w->floored, true);
        break;
    case QUANT_INFEASIBLE:
        return allot_fail(
            err, ALLOT_ERR_NUMERIC, "%s: tensor %s: %s cannot hold the weights of rows %lld to %lld",
            w->job->model->path, t->name, ggml_type_name(w->type), (long long)row, (long long)(row + n - 1));
    }
    if (w->rounded)
        status = w->job->rounding->rows(w->job->rounding->user, t, w->type, row, n, scratch->weights,
                                        scratch->bytes, err);
    if (status)
        return status;
    return partial_write(w->partial, scratch->bytes, (size_t)(n * out_row_bytes),
                         w->offset + row * out_row_bytes, err);
}

/* The first row of a block; of the block after the last, the number of rows. */
static int64_t first_row(const struct tensor_work *w, int64_t block)
{
    return block / w->blocks_per_matrix * w->tensor->ne[1] + block % w->blocks_per_matrix * w->block_rows;
}

/* Where in the file a block's first row goes; of the block after the last, where the tensor ends. */
static int64_t block_offset(const struct tensor_work *w, int64_t block)
{
    const int64_t row_bytes = (int64_t)ggml_row_size(w->type, w->tensor->ne[0]);
    return w->offset + first_row(w, block) * row_bytes;
}

/* Item 0 takes what the batches before have written into the checksum. */
static void work_on_item(void *user, int64_t item, int thread)
{
    struct tensor_work *w = user;
    const int64_t block = w->first_block + item - 1;
    if (item == 0) {
        checksum_up_to(w->checksum, w->partial, block_offset(w, w->first_block));
        return;
    }
    const struct gguf_tensor *t = w->tensor;
    struct allot_error error;
    if (failed_before(w, block))
        return;
    const int64_t row = first_row(w, block), left = t->ne[1] - row % t->ne[1];
    const int64_t n = left < w->block_rows ? left : w->block_rows;
    const allot_status status = w->type == t->type ? copy_rows(w, row, n, &error)
                                                   : convert_rows(w, row, n, &w->scratch[thread], &error);
    if (status)
        record_error(w, block, &error);
}

static int64_t rows_per_block(const struct quantize_job *job, const struct gguf_tensor *t,
                              enum ggml_type type)
{
    int64_t rows = type == t->type ? COPY_BYTES / t->row_bytes : BLOCK_WEIGHTS / t->ne[0];
    if (job->rounding && type != t->type)
        rows = rows < COMPENSATE_ROWS ? COMPENSATE_ROWS : rows / COMPENSATE_ROWS * COMPENSATE_ROWS;
    return rows < 1 ? 1 : rows < t->ne[1] ? rows : t->ne[1];
}

/* ---- The job --------------------------------------------------------------------------------------- */

struct run {
    const struct quantize_job *job;
    struct pool *pool;
    const struct allot_progress *progress;
    struct partial partial;
    struct strbuf header;
    int64_t *offsets;
    int64_t file_size;
    struct thread_scratch *scratch;
    struct checksum checksum;
    int64_t done, total; /* weights */
};

static allot_status write_padding(struct run *run, int64_t offset, int64_t n_bytes, struct allot_error *err)
{
    static const uint8_t zeros[GGUF_WRITER_ALIGNMENT];
    const size_t n = (size_t)(gguf_padded(n_bytes) - n_bytes);
    return n ? partial_write(&run->partial, zeros, n, offset + n_bytes, err) : ALLOT_OK;
}

static allot_status write_tensor(struct run *run, int64_t index, struct allot_error *err)
{
    const struct quantize_job *job = run->job;
    const struct gguf_tensor *t = &job->model->tensors[index];
    struct tensor_work w = {
        .job = job,
        .tensor = t,
        .type = job->types[index],
        .imatrix = job->imatrix ? job->imatrix[index] : NULL,
        .partial = &run->partial,
        .offset = run->offsets[index],
        .checksum = &run->checksum,
        .scratch = run->scratch,
        .block_rows = rows_per_block(job, t, job->types[index]),
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .failed_block = INT64_MAX,
    };
    w.blocks_per_matrix = (t->ne[1] + w.block_rows - 1) / w.block_rows;
    w.n_blocks = w.blocks_per_matrix * t->ne[2] * t->ne[3];
    const int64_t batch = (int64_t)BLOCKS_PER_THREAD * pool_threads(run->pool);
    allot_status status = ALLOT_OK;
    if (job->rounding && w.type != t->type)
        status = job->rounding->begin(job->rounding->user, t, w.type, &w.rounded, err);
    for (int64_t block = 0; block < w.n_blocks && !status; block += batch) {
        const int64_t left = w.n_blocks - block;
        w.first_block = block;
        pool_run(run->pool, (left < batch ? left : batch) + 1, work_on_item, &w);
        const int64_t row = first_row(&w, block),
                      end = first_row(&w, left < batch ? w.n_blocks : block + batch);
        gguf_tensor_forget_rows(t, row, end - row);
        if (w.failed_block != INT64_MAX) {
            *err = w.error;
            status = w.error.status;
        } else if (run->checksum.status) {
            *err = run->checksum.error;
            status = run->checksum.status;
        } else if (left > batch) {
            const int64_t weights =
                (int64_t)((double)t->n_elements * (double)(block + batch) / (double)w.n_blocks);
            status = allot_report(run->progress, err, "quantize", run->done + weights, run->total);
        }
    }
    pthread_mutex_destroy(&w.lock);
    if (status)
        return status;

    const int64_t n_bytes = (int64_t)ggml_row_size(w.type, t->ne[0]) * t->n_rows;
    status = write_padding(run, w.offset, n_bytes, err);
    checksum_note(&run->checksum, &run->partial);
    if (!status)
        status = partial_advance(&run->partial, n_bytes, atomic_load(&w.floored), err);
    if (!status && atomic_load(&w.floored))
        allot_note(run->progress, "tensor %s: zero or extreme importances were adjusted to quantize it to %s",
                   t->name, ggml_type_name(w.type));
    run->done += t->n_elements;
    return status ? status : allot_report(run->progress, err, "quantize", run->done, run->total);
}

static void free_scratch(struct run *run)
{
    for (int i = 0; run->scratch && i < pool_threads(run->pool); i++) {
        free(run->scratch[i].weights);
        free(run->scratch[i].bytes);
    }
    free(run->scratch);
    run->scratch = NULL;
}

/* Of the largest block of any tensor that is converted. */
struct block_size {
    size_t weights, bytes; /* float32, and as written */
};

static struct block_size largest_block(const struct quantize_job *job)
{
    struct block_size most = {0};
    for (int64_t i = 0; i < job->model->n_tensors; i++) {
        const struct gguf_tensor *t = &job->model->tensors[i];
        if (job->types[i] == t->type)
            continue;
        const int64_t rows = rows_per_block(job, t, job->types[i]);
        const size_t weights = (size_t)(rows * t->ne[0]) * sizeof(float);
        const size_t bytes = (size_t)rows * ggml_row_size(job->types[i], t->ne[0]);
        most.weights = weights > most.weights ? weights : most.weights;
        most.bytes = bytes > most.bytes ? bytes : most.bytes;
    }
    return most;
}

static allot_status make_scratch(struct run *run, struct allot_error *err)
{
    const struct block_size block = largest_block(run->job);
    const int n_threads = pool_threads(run->pool);
    run->scratch = calloc((size_t)n_threads, sizeof *run->scratch);
    if (!run->scratch)
        return allot_fail_memory(err, (size_t)n_threads * sizeof *run->scratch, "row blocks");
    for (int i = 0; i < n_threads && block.weights; i++) {
        run->scratch[i].weights = malloc(block.weights);
        run->scratch[i].bytes = malloc(block.bytes);
        if (!run->scratch[i].weights || !run->scratch[i].bytes)
            return allot_fail_memory(err, block.weights + block.bytes, "a row block");
    }
    return ALLOT_OK;
}

/* Besides the blocks nothing grows with the model. */
allot_status quantize_check_memory(const struct quantize_job *job, int n_threads, struct allot_error *err)
{
    const struct block_size block = largest_block(job);
    const int64_t needed = memory_base(n_threads) + (int64_t)(block.weights + block.bytes) * n_threads +
                           (job->rounding ? job->rounding->bytes : 0);
    const int64_t mib = 1 << 20;
    if (job->memory == 0 || needed <= job->memory)
        return ALLOT_OK;
    return allot_fail(
        err, ALLOT_ERR_MEMORY,
        "%s: at least %lldMiB of memory are needed, and the limit is %lldMiB (--mem; by default 60 %% "
        "of what there is)",
        job->out_path, (long long)((needed + mib - 1) / mib), (long long)(job->memory / mib));
}

/* What an unfinished file must share with this job to be continued. */
static allot_status job_key(const struct run *run, char key[static HASH_HEX], struct allot_error *err)
{
    struct hash *h = NULL;
    allot_status status = hash_new(&h, err);
    if (status)
        return status;
    hash_update_str(h, run->job->identity ? run->job->identity : "");
    hash_update(h, run->header.data, run->header.len);
    hash_final(h, key);
    return key[0] ? ALLOT_OK : allot_fail(err, ALLOT_ERR_INTERNAL, "SHA-256 failed");
}

/* Reads the file as anyone would and compares it with the job. */
static allot_status verify_output(const struct run *run, struct allot_error *err)
{
    const struct gguf_model *model = run->job->model;
    const char *path = run->partial.path;
    struct gguf_model *written = NULL;
    allot_status status = gguf_model_open(&written, path, err);
    if (status)
        return status;
    if (written->n_tensors != model->n_tensors)
        status = allot_fail(err, ALLOT_ERR_INTERNAL, "%s: %lld tensors were written, %lld expected", path,
                            (long long)written->n_tensors, (long long)model->n_tensors);
    for (int64_t i = 0; i < model->n_tensors && !status; i++) {
        const struct gguf_tensor *a = &written->tensors[i], *b = &model->tensors[i];
        if (strcmp(a->name, b->name) != 0 || a->type != run->job->types[i] ||
            memcmp(a->ne, b->ne, sizeof a->ne) != 0 || a->file_offset != run->offsets[i])
            status = allot_fail(err, ALLOT_ERR_INTERNAL, "%s: tensor %s is not what was to be written", path,
                                b->name);
    }
    gguf_model_close(written);
    return status;
}

/* Where the tensors of an earlier run end. */
static int64_t written_end(const struct run *run)
{
    const int64_t first = run->partial.finished;
    return first < run->job->model->n_tensors ? run->offsets[first] : run->file_size;
}

static allot_status write_all(struct run *run, struct quantize_result *result, struct allot_error *err)
{
    const struct gguf_model *model = run->job->model;
    allot_status status = partial_reserve(&run->partial, err);
    if (!status)
        status = make_scratch(run, err);
    if (!status)
        status =
            checksum_begin(&run->checksum, &run->partial, &run->header, written_end(run), run->progress, err);
    result->resumed_tensors = run->partial.finished;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        run->total += model->tensors[i].n_elements;
        run->done += i < run->partial.finished ? model->tensors[i].n_elements : 0;
    }
    if (!status)
        status = allot_report(run->progress, err, "quantize", run->done, run->total);
    for (int64_t i = run->partial.finished; i < model->n_tensors && !status; i++)
        status = write_tensor(run, i, err);
    if (!status)
        status = partial_seal(&run->partial, run->header.data, run->header.len, err);
    if (!status)
        status = allot_report(run->progress, err, "checksum", run->checksum.done, run->file_size);
    if (!status)
        status = checksum_end(&run->checksum, &run->partial, run->file_size, result->sha256, err);
    if (!status)
        status = verify_output(run, err);
    if (!status)
        status = allot_report(run->progress, err, "checksum", run->file_size, run->file_size);
    if (status)
        return status;
    result->file_bytes = run->file_size;
    result->floored_tensors = run->partial.floored;
    return partial_commit(&run->partial, err);
}

allot_status quantize_write(const struct quantize_job *job, struct pool *pool, struct quantize_result *result,
                            const struct allot_progress *progress, struct allot_error *err)
{
    struct run run = {.job = job, .pool = pool, .progress = progress, .partial = {.fd = -1}};
    struct quantize_result found = {0};
    char key[HASH_HEX];
    allot_status status = check_job(job, progress, err);
    if (!status)
        status = quantize_check_memory(job, pool_threads(pool), err);
    if (status)
        return status;
    run.offsets = calloc((size_t)job->model->n_tensors + 1, sizeof *run.offsets);
    if (!run.offsets) {
        status = allot_fail_memory(err, (size_t)job->model->n_tensors * sizeof *run.offsets, "offsets");
        goto cleanup;
    }
    status = build_header(job, &run.header, run.offsets, &run.file_size, err);
    if (!status && run.header.len < PARTIAL_JOURNAL_BYTES)
        status = allot_fail(err, ALLOT_ERR_INTERNAL, "a header of %zu bytes is too short", run.header.len);
    if (!status)
        status = job_key(&run, key, err);
    const struct partial_job partial_job = {
        .out_path = job->out_path,
        .file_size = run.file_size,
        .n_tensors = job->model->n_tensors,
        .key = key,
        .header = &run.header,
        .input = job->model,
    };
    if (!status)
        status = partial_open(&run.partial, &partial_job, err);
    if (!status && job->sync_interval > 0)
        run.partial.sync_interval = job->sync_interval;
    if (!status)
        status = write_all(&run, &found, err);
    if (!status)
        *result = found;
cleanup:
    partial_close(&run.partial, status == ALLOT_ERR_INTERRUPTED);
    free_scratch(&run);
    checksum_release(&run.checksum);
    strbuf_release(&run.header);
    free(run.offsets);
    return status;
}
