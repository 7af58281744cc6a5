/* batch_fill.h - weights and what their errors count, laid out for the lanes.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). */

/* Sums of squares of n_runs runs of `length` weights, in the order of the weights; a lane carries a run. */
static void sums_of_squares(float *sums, const float *src, int64_t n_runs, int64_t length)
{
    for (int64_t first = 0; first < n_runs; first += LANES) {
        const int64_t n = n_runs - first < LANES ? n_runs - first : LANES;
        vf sum = f_set(0), rows[LANES];
        for (int64_t i = 0; i < length; i += LANES) {
            for (int k = 0; k < LANES; k++)
                rows[k] = f_load(src + (first + (k < n ? k : 0)) * length + i);
            f_transpose(rows);
            for (int k = 0; k < LANES; k++)
                sum += rows[k] * rows[k];
        }
        memcpy(sums + first, &sum, sizeof(float) * (size_t)n);
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
        sums_of_squares(squares, s->src + start, count / run, run);
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
        sums_of_squares(squares, x, count / run, run);
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
    for (int tile = 0; tile < n_units; tile += LANES, to += LANES * unit)
        for (int i = 0; i < unit; i += LANES) {
            vf rows[LANES];
            for (int k = 0; k < LANES; k++)
                rows[k] = tile + k < n_units ? f_load(from + (tile + k) * unit + i) : f_set(0);
            f_transpose(rows);
            for (int k = 0; k < LANES; k++)
                f_store(to + (i + k) * LANES, rows[k]);
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
    if (weighting == WEIGHT_NONE)
        return;
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
