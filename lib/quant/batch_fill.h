/* batch_fill.h - weights and what their errors count, laid out for the lanes.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). */

enum { CHAINS = 8 };

/* Sums of squares of n consecutive weights at each start, in their order; several at a time, for a sum waits
 * for the one before it. */
static void sums_of_squares(float *sums, const float *const starts[CHAINS], int n_starts, int64_t n)
{
    float s[CHAINS] = {0};
    if (n_starts == CHAINS) {
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < CHAINS; k++)
                s[k] += starts[k][i] * starts[k][i];
    } else {
        for (int k = 0; k < n_starts; k++)
            for (int64_t i = 0; i < n; i++)
                s[k] += starts[k][i] * starts[k][i];
    }
    memcpy(sums, s, sizeof(float) * (size_t)n_starts);
}

static void row_squares(float *sums, const float *src, int64_t n_rows, int64_t n_per_row)
{
    for (int64_t row = 0; row < n_rows; row += CHAINS) {
        const float *starts[CHAINS];
        int n = n_rows - row < CHAINS ? (int)(n_rows - row) : CHAINS;
        for (int k = 0; k < n; k++)
            starts[k] = src + (row + k) * n_per_row;
        sums_of_squares(sums + row, starts, n, n_per_row);
    }
}

/* sums[k]: over the k-th run of `length` weights of the batch. */
static void run_squares(float *sums, const float *src, int count, int length)
{
    for (int first = 0; first < count / length; first += CHAINS) {
        const float *starts[CHAINS];
        int n = count / length - first < CHAINS ? count / length - first : CHAINS;
        for (int k = 0; k < n; k++)
            starts[k] = src + (first + k) * length;
        sums_of_squares(sums + first, starts, n, length);
    }
}

/* weight[i] = q[i] sqrt(sigma2 + x[i]^2) for n weights, a multiple of LANES. */
LANE void weigh(float *weight, const float *x, const float *q, float sigma2, int n)
{
    for (int i = 0; i < n; i += LANES) {
        vf v = f_load(x + i);
        f_store(weight + i, f_load(q + i) * f_sqrt(sigma2 + v * v));
    }
}

/* The mean square that a weighting adds, from the sum of squares. */
LANE float sigma2_of(float squares, enum weighting weighting, int64_t n_per_row)
{
    switch (weighting) {
    case WEIGHT_ROW:
        return squares / (float)n_per_row;
    case WEIGHT_BLOCK:
        return squares * (2.0f / 32);
    case WEIGHT_SUPER:
        return squares / SUPER_BLOCK;
    default:
        return 2 * squares / SUPER_BLOCK;
    }
}

static void fill_with_importances(float *weight, const struct batch_source *s, int64_t start, int count,
                                  enum weighting weighting)
{
    float squares[BATCH / 32] = {0};
    int run = weighting == WEIGHT_SUPER || weighting == WEIGHT_SUPER_2 ? SUPER_BLOCK : 32;
    if (weighting != WEIGHT_ROW && weighting != WEIGHT_RAW)
        run_squares(squares, s->src + start, count, run);
    int64_t row = start / s->n_per_row, column = start % s->n_per_row;
    for (int i = 0; i < count; i += run) {
        if (weighting == WEIGHT_RAW) {
            memcpy(weight + i, s->imatrix + column, sizeof(float) * (size_t)run);
        } else {
            float sum = weighting == WEIGHT_ROW ? s->row_squares[row] : squares[i / run];
            weigh(weight + i, s->src + start + i, s->imatrix + column,
                  sigma2_of(sum, weighting, s->n_per_row), run);
        }
        column += run;
        if (column == s->n_per_row) {
            column = 0;
            row++;
        }
    }
}

static void fill_without(float *weight, const float *x, int count, int unit, enum weighting weighting)
{
    float squares[MAX_UNITS];
    int run = weighting == WEIGHT_HALF_SUPER ? SUPER_BLOCK : unit;
    if (weighting == WEIGHT_HALF_SUPER || weighting == WEIGHT_UNIT_RMS)
        run_squares(squares, x, count, run);
    for (int first = 0; first < count; first += run) {
        float add = 0;
        if (weighting == WEIGHT_HALF_SUPER)
            add = 0.25f * (2 * squares[first / run] / SUPER_BLOCK);
        else if (weighting == WEIGHT_UNIT_RMS)
            add = (float)sqrt((double)(squares[first / run] / (float)run));
        for (int i = first; i < first + run; i += LANES) {
            vf v = f_load(x + i);
            if (weighting == WEIGHT_MAGNITUDE)
                f_store(weight + i, f_abs(v));
            else if (weighting == WEIGHT_UNIT_RMS)
                f_store(weight + i, add + f_abs(v));
            else if (weighting == WEIGHT_HALF_SUPER)
                f_store(weight + i, add + v * v);
            else
                f_store(weight + i, v * v);
        }
    }
}

/* to[tile][i][lane] = from[unit][i]. */
static void lay_out_tiles(float *to, const float *from, int unit, int n_units)
{
    for (int tile = 0; tile < n_units; tile += LANES, to += LANES * unit) {
        int n = n_units - tile < LANES ? n_units - tile : LANES;
        if (n < LANES)
            memset(to, 0, sizeof(float) * (size_t)(LANES * unit));
        for (int lane = 0; lane < n; lane++)
            for (int i = 0; i < unit; i++)
                to[i * LANES + lane] = from[(tile + lane) * unit + i];
    }
}

static void batch_fill(struct batch *b, const struct batch_source *source, int64_t start, int count, int unit,
                       enum weighting weighting)
{
    b->unit = unit;
    b->n_units = count / unit;
    b->weighted = weighting <= WEIGHT_RAW;
    b->source = source;
    b->start = start;
    b->src = source->src + start;
    if (b->weighted)
        fill_with_importances(b->weight, source, start, count, weighting);
    else
        fill_without(b->weight, b->src, count, unit, weighting);
    lay_out_tiles(b->x, b->src, unit, b->n_units);
    lay_out_tiles(b->w, b->weight, unit, b->n_units);
}

/* A super-block of the batch by ggml itself. */
static void block_by_ggml(const struct batch *b, enum ggml_type type, int block, uint8_t *out)
{
    const struct batch_source *s = b->source;
    const int64_t at = b->start + block * SUPER_BLOCK;
    ggml_quantize_chunk(type, s->src + at, out, 0, 1, SUPER_BLOCK,
                        s->imatrix ? s->imatrix + at % s->n_per_row : NULL);
}
