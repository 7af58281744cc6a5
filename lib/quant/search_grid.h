/* search_grid.h - groups of weights coded by points of a grid: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S.
 * SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h); grids.h says what a grid, a code word and its neighbours are. A
 * weight is sign * (2 code + 1) * scale, and the codes of a group must be a point. A unit's scale is found in
 * three passes:
 *
 *   1. Scales are tried that spread the largest magnitude over about the largest code. Each weight takes its
 *      nearest code; the word of a group that is no point becomes the neighbour with the least weighted
 *      error. The best fit of a scale to the points, by weighted least squares, is kept.
 *   2. Words are formed again for the scale of that fit, and the scale is fitted to them again.
 *   3. The scales of a super-block become integers times one factor.
 *
 * Where signs are stored for seven of eight weights, an odd number of minus signs is made even first: the
 * weight that counts least changes its sign, so that its magnitude is negative from there on.
 *
 * Lanes carry units, but for the choice among neighbours: there they carry the neighbours of one word. What a
 * coordinate adds to an error is one of as many terms as there are codes, all computed before; a neighbour's
 * error is the sum of the terms that its word selects, coordinate by coordinate as ggml adds them. */

/* Which groups the second pass forms again, if the scale is above zero. */
enum grid_again {
    AGAIN_ALL,       /* all of them, in any case */
    AGAIN_OFF,       /* those whose words were no points */
    AGAIN_IF_ANY_OFF /* all of them, if there is a word that was no point */
};

struct grid_search {
    enum ggml_type type;
    int unit;
    int size, bits, top; /* of groups; of codes; the largest code */
    int steps;           /* scales are tried for so many steps to either side */
    float step;
    float zero;  /* a unit whose largest magnitude is less is coded as zeros */
    bool refits; /* the first scale is make_qp_quants' for codes up to top + 1, not the largest magnitude's */
    bool even;   /* signs */
    enum grid_again again;
    float fudge; /* of the super-block's factor */
    bool clears; /* a super-block without a scale above zero is all zeros */
};

enum {
    GRID_UNIT = 32,                        /* most weights in a unit */
    GRID_GROUPS = 8,                       /* most groups in it */
    GRID_TRIES = 31,                       /* most scales tried */
    GRID_OFF = 1 << 16,                    /* in a word: ggml had to search it */
    GRID_PARTS = LANES < 8 ? 8 / LANES : 1 /* vectors that a table of eight takes */
};

/* A tile of units, [weight][lane]. */
struct grid_tile {
    _Alignas(64) float x[GRID_UNIT * LANES];    /* magnitudes */
    _Alignas(64) float root[GRID_UNIT * LANES]; /* of w: what neighbours are weighted by */
    const float *w;
    _Alignas(64) float scale[GRID_TRIES * LANES];                 /* [try][lane] */
    _Alignas(64) int32_t words[GRID_TRIES * GRID_GROUPS * LANES]; /* [try][group][lane] */
    unsigned loose[GRID_TRIES * GRID_GROUPS]; /* lanes whose lists must not be the short ones */
    int32_t signs[GRID_UNIT / 8][LANES];
};

/* Of every unit of a batch. */
struct grid_fit {
    float scale[MAX_UNITS];
    bool zero[MAX_UNITS]; /* nothing in it to be coded; the rest is zero, too */
    uint16_t points[BATCH / 4];
    uint8_t signs[BATCH / 8];
};

/* ---- Magnitudes and signs ---------------------------------------------------------------------------------
 */

/* Changes the sign of one of eight weights where the number of minus signs is odd. */
LANE vi grid_even_signs(float *x, const float *w, vi signs, vi n_minus)
{
    vf least = f_load(w) * f_load(x) * f_load(x);
    vi at = i_set(0);
    for (int i = 1; i < 8; i++) {
        vf v = f_load(x + i * LANES), counts = f_load(w + i * LANES) * v * v;
        vm less = f_lt(counts, least);
        least = f_pick(less, counts, least);
        at = i_pick(less, i_set(i), at);
    }
    vm odd = i_eq(n_minus & 1, i_set(1));
    for (int i = 0; i < 8; i++) {
        vf v = f_load(x + i * LANES);
        vm change = m_and(odd, i_eq(at, i_set(i)));
        f_store(x + i * LANES, f_pick(change, -v, v));
        signs = i_pick(change, signs ^ (1 << i), signs);
    }
    return signs & 127;
}

LANE void grid_load(struct grid_tile *t, const float *x, const float *w, const struct grid_search *s)
{
    t->w = w;
    for (int k = 0; k < s->unit / 8; k++) {
        vi signs = i_set(0), n_minus = i_set(0);
        for (int i = 0; i < 8; i++) {
            int at = (8 * k + i) * LANES;
            vf v = f_load(x + at);
            vm minus = f_lt(v, f_set(0));
            f_store(t->x + at, f_abs(v));
            f_store(t->root + at, f_sqrt(f_load(w + at)));
            signs = i_pick(minus, signs + (1 << i), signs);
            n_minus = i_pick(minus, n_minus + 1, n_minus);
        }
        if (s->even)
            signs = grid_even_signs(t->x + 8 * k * LANES, w + 8 * k * LANES, signs, n_minus);
        i_store(t->signs[k], signs);
    }
}

/* ---- Code words -------------------------------------------------------------------------------------------
 */

/* The codes of a group of weights as a word. `close`: where no weight is nearly half-way between two codes.
 * small: no product exceeds ROUNDING_MOST in magnitude. */
LANE vi grid_word(vm *close, const float *x, vf per_unit, const struct grid_search *s, bool small)
{
    vf word = f_set(0), off = f_set(0);
    for (int i = s->size - 1; i >= 0; i--) {
        vf y = 0.5f * (per_unit * f_load(x + i * LANES) - 1), code;
        if (small) {
            y = f_most(y, f_set(0));
            code = (y + ROUNDING) - ROUNDING;
            off = f_most(f_abs(y - code), off);
            code = f_least(code, f_set((float)s->top));
        } else {
            code = f_from(clamped(nearest(y), 0, s->top));
        }
        word = word * (float)(1 << s->bits) + code;
    }
    *close = small ? f_lt(off, f_set(0.4999f)) : m_none();
    return __builtin_convertvector(word, vi);
}

/* The words of all groups of a try. A short list may serve where the weights are close to their codes, and
 * the scale's reciprocal is a normal number. */
LANE void grid_words(struct grid_tile *t, int try, vf per_unit, vf scale, vm alive, vf least, vf most,
                     const struct grid_search *s)
{
    const int groups = s->unit / s->size;
    int32_t *words = t->words + try * groups * LANES;
    vm normal = m_and(f_lt(f_set(1e-30f), scale), f_lt(scale, f_set(1e30f)));
    vm small = m_or(m_not(alive), is_small(per_unit * least, per_unit * most));
    bool all_small = m_bits(small) == (1u << LANES) - 1;
    f_store(t->scale + try * LANES, scale);
    for (int k = 0; k < groups; k++) {
        vm close;
        vi word;
        if (all_small)
            word = grid_word(&close, t->x + k * s->size * LANES, per_unit, s, true);
        else
            word = grid_word(&close, t->x + k * s->size * LANES, per_unit, s, false);
        i_store(words + k * LANES, word);
        t->loose[try * groups + k] = m_bits(m_not(m_and(close, normal)));
    }
}

/* ---- Neighbours -------------------------------------------------------------------------------------------
 */

/* Values of codes 0 to 7, or 0 to 3 repeatedly. */
LANE void grid_values(vf *table, const struct grid_search *s)
{
    static const float by_bits[2][16] = {{1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7},
                                         {1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15}};
    for (int p = 0; p < GRID_PARTS; p++)
        table[p] = f_load(by_bits[s->bits - 2] + p * LANES);
}

/* Of coordinate i of words. */
LANE vf grid_of(const vf *table, vi words, int i, const struct grid_search *s)
{
    return s->bits == 2 ? f_of_four(table, words >> (2 * i)) : f_of_eight(table, words >> (3 * i));
}

/* Errors of LANES neighbours; what can not win in ggml is FLT_MAX. */
LANE vf grid_errors(vf terms[][GRID_PARTS], const uint16_t *list, const struct grid_search *s)
{
    vi words = i_load_words(list);
    vf error = grid_of(terms[0], words, 0, s);
    for (int i = 1; i < s->size; i++)
        error += grid_of(terms[i], words, i, s);
    return f_least(error, f_set(FLT_MAX));
}

/* The first neighbour with the least error, of n vectors of them. */
LANE uint16_t grid_nearest(vf terms[][GRID_PARTS], const uint16_t *list, int n, const struct grid_search *s)
{
    uint16_t best = list[0];
    float best_error = INFINITY;
    if (n == 1) {
        vf error = grid_errors(terms, list, s);
        return list[__builtin_ctz(m_bits(f_le(error, f_least_of_all(error))))];
    }
    for (int k = 0; k < n; k++, list += LANES) {
        vf error = grid_errors(terms, list, s);
        vf least = f_least_of_all(error);
        if (least[0] < best_error) {
            best_error = least[0];
            best = list[__builtin_ctz(m_bits(f_le(error, least)))];
        }
    }
    return best;
}

/* Replaces the words by neighbours. items: their places in t->words, after which `entries` are theirs. */
struct grid_items {
    int n;
    uint16_t at[GRID_TRIES * GRID_GROUPS * LANES + 1];
    int32_t entry[GRID_TRIES * GRID_GROUPS * LANES + 1];
};

LANE void grid_replace(struct grid_tile *t, const struct grid_items *items, const struct quant_grid *g,
                       const struct grid_search *s, int n)
{
    const int groups = s->unit / s->size;
    vf values[GRID_PARTS];
    grid_values(values, s);
    for (int item = 0; item < items->n; item++) {
        const int at = items->at[item], lane = at % LANES, group = at / LANES % groups,
                  try = at / (LANES * groups);
        const float *x = t->x + group * s->size * LANES + lane,
                    *root = t->root + group * s->size * LANES + lane;
        vf terms[8][GRID_PARTS], scale = f_set(t->scale[try * LANES + lane]);
        for (int i = 0; i < s->size; i++)
            for (int p = 0; p < GRID_PARTS; p++) {
                vf d = scale * values[p] - f_set(x[i * LANES]);
                terms[i][p] = f_set(root[i * LANES]) * d * d;
            }
        int32_t entry = items->entry[item];
        int steps = n ? n : (grid_steps(entry) * GRID_STEP + LANES - 1) / LANES;
        t->words[at] = grid_nearest(terms, grid_list(g, entry), steps, s) | GRID_OFF;
    }
}

/* Makes points of the words of the first so many tries, in the lanes of the units that are alive. */
LANE void grid_points(struct grid_tile *t, int tries, unsigned alive, const struct quant_grid *g,
                      const struct grid_search *s)
{
    const int n = tries * (s->unit / s->size) * LANES;
    struct grid_items items[4]; /* points; by the number of vectors: one, two, more */
    for (int k = 0; k < 4; k++)
        items[k].n = 0;
    for (int at = 0; at < n; at++) {
        const unsigned lane = (unsigned)at % LANES;
        const int32_t *map = t->loose[at / LANES] >> lane & 1 ? g->map : g->short_map;
        int32_t entry = map[t->words[at]];
        int size = (grid_steps(entry) * GRID_STEP + LANES - 1) / LANES;
        size = entry >= 0 || !(alive >> lane & 1) ? 0 : size < 3 ? size : 3;
        struct grid_items *to = &items[size];
        to->at[to->n] = (uint16_t)at;
        to->entry[to->n] = entry;
        to->n++;
    }
    grid_replace(t, &items[1], g, s, 1);
    grid_replace(t, &items[2], g, s, 2);
    grid_replace(t, &items[3], g, s, 0);
}

/* ---- Scales -----------------------------------------------------------------------------------------------
 */

/* The sums of the fit of a scale to the words of all groups. */
LANE void grid_sums(vf *sum_qx, vf *sum_q2, const struct grid_tile *t, const int32_t *words,
                    const struct grid_search *s)
{
    vf values[GRID_PARTS], qx = f_set(0), q2 = f_set(0);
    grid_values(values, s);
    for (int k = 0; k < s->unit / s->size; k++) {
        vi word = i_load(words + k * LANES);
        for (int i = 0; i < s->size; i++) {
            int at = (k * s->size + i) * LANES;
            vf q = grid_of(values, word, i, s), w = f_load(t->w + at);
            qx += w * f_load(t->x + at) * q;
            q2 += w * q * q;
        }
    }
    *sum_qx = qx;
    *sum_q2 = q2;
}

/* Pass 1. Returns the scales; `words`: of the best tries, [group][lane]. */
LANE vf grid_first_pass(struct grid_tile *t, int32_t *words, vm alive, vf least, vf most, vf range, vf scale,
                        const struct quant_grid *g, const struct grid_search *s)
{
    const int groups = s->unit / s->size, tries = 2 * s->steps + 1;
    for (int try = 0; try < tries; try++) {
        vf per_unit = ((float)(2 * s->top + 1) + (float)(try - s->steps) * s->step) / range;
        grid_words(t, try, per_unit, 1 / per_unit, alive, least, most, s);
    }
    grid_points(t, tries, m_bits(alive), g, s);
    vf best = f_set(0);
    for (int k = 0; k < groups; k++)
        i_store(words + k * LANES, i_set(s->again == AGAIN_IF_ANY_OFF ? GRID_OFF : 0));
    for (int try = 0; try < tries; try++) {
        const int32_t *tried = t->words + try * groups * LANES;
        vf qx, q2;
        grid_sums(&qx, &q2, t, tried, s);
        vm won = m_and(f_lt(f_set(0), q2), f_lt(best * q2, qx * qx));
        scale = f_pick(won, qx / q2, scale);
        best = f_pick(won, scale * qx, best);
        for (int k = 0; k < groups; k++)
            i_store(words + k * LANES, i_pick(won, i_load(tried + k * LANES), i_load(words + k * LANES)));
    }
    return scale;
}

/* Pass 2. */
LANE vf grid_second_pass(struct grid_tile *t, int32_t *words, vm alive, vf least, vf most, vf scale,
                         const struct quant_grid *g, const struct grid_search *s)
{
    const int groups = s->unit / s->size;
    vi off = i_set(0);
    for (int k = 0; k < groups; k++)
        off |= i_load(words + k * LANES) & GRID_OFF;
    vm again = m_and(alive, f_lt(f_set(0), scale));
    if (s->again != AGAIN_ALL)
        again = m_andnot(again, i_eq(off, i_set(0)));
    if (m_bits(again) == 0)
        return scale;
    grid_words(t, 0, 1 / scale, scale, again, least, most, s);
    grid_points(t, 1, m_bits(again), g, s);
    for (int k = 0; k < groups; k++) {
        vi word = i_load(words + k * LANES), formed = i_load(t->words + k * LANES);
        vm here = again;
        if (s->again == AGAIN_OFF)
            here = m_andnot(again, i_eq(word & GRID_OFF, i_set(0)));
        i_store(words + k * LANES, i_pick(here, formed, word));
    }
    vf qx, q2;
    grid_sums(&qx, &q2, t, words, s);
    return f_pick(m_and(again, f_lt(f_set(0), q2)), qx / q2, scale);
}

/* The units from `first` on. */
LANE void grid_search_tile(struct grid_fit *fit, const struct batch *b, int first, const struct quant_grid *g,
                           const struct grid_search *s)
{
    const int groups = s->unit / s->size;
    struct grid_tile t;
    int32_t words[GRID_GROUPS * LANES];
    grid_load(&t, b->x + first * s->unit, b->w + first * s->unit, s);
    vf least = f_load(t.x), most = least;
    for (int i = 1; i < s->unit; i++) {
        least = f_least(least, f_load(t.x + i * LANES));
        most = f_most(most, f_load(t.x + i * LANES));
    }
    vm alive = s->zero > 0 ? m_not(f_lt(most, f_set(s->zero))) : f_ne(most, f_set(0));
    vf range = most, scale = most / (float)(2 * s->top + 1);
    if (s->refits) {
        vi codes[GRID_UNIT];
        scale = refit_tile(codes, t.x, t.w, LANES, s->unit, s->top + 2);
        range = scale * (float)(s->top + 1);
        alive = m_andnot(alive, f_le(range, f_set(0)));
    }
    scale = grid_first_pass(&t, words, alive, least, most, range, scale, g, s);
    scale = grid_second_pass(&t, words, alive, least, most, scale, g, s);
    vm turned = f_lt(scale, f_set(0));
    f_store(fit->scale + first, f_pick(alive, f_abs(scale), f_set(0)));
    unsigned lives = m_bits(alive), turns = m_bits(turned);
    for (int lane = 0; lane < LANES && first + lane < b->n_units; lane++) {
        uint16_t *points = fit->points + (first + lane) * groups;
        uint8_t *signs = fit->signs + (first + lane) * (s->unit / 8);
        fit->zero[first + lane] = !(lives >> lane & 1);
        for (int k = 0; k < groups; k++)
            points[k] = lives >> lane & 1 ? (uint16_t)g->map[words[k * LANES + lane] & (GRID_OFF - 1)] : 0;
        for (int k = 0; k < s->unit / 8; k++) {
            int32_t bits = turns >> lane & 1 ? ~t.signs[k][lane] : t.signs[k][lane];
            signs[k] = lives >> lane & 1 ? (uint8_t)(bits & (s->even ? 127 : 255)) : 0;
        }
    }
}

/* ---- Super-blocks -----------------------------------------------------------------------------------------
 */

/* Pass 3: the integers of n units; returns the factor as it is stored, before it becomes FP16. */
LANE float grid_levels(uint8_t *levels, const float *scale, int n, const struct grid_search *s)
{
    float most = 0;
    memset(levels, 0, (size_t)n);
    for (int j = 0; j < n; j++)
        most = most > scale[j] ? most : scale[j];
    if (most == 0)
        return 0;
    float d = most / 31, per_unit = 1 / d;
    for (int j = 0; j < n; j++) {
        int32_t level = nearest_one(0.5f * (per_unit * scale[j] - 1));
        levels[j] = (uint8_t)(level < 0 ? 0 : level > 15 ? 15 : level);
    }
    return d * s->fudge;
}

/* Four signs of seven bits and a level of four. */
LANE void store_signs_and_level(uint8_t *p, const uint8_t *signs, uint8_t level)
{
    uint32_t bits = (uint32_t)level << 28;
    for (int k = 0; k < 4; k++)
        bits |= (uint32_t)signs[k] << (7 * k);
    memcpy(p, &bits, sizeof bits);
}

/* The lower bytes of n indices, and so many higher bits of each, several in a byte. */
LANE void store_indices(uint8_t *low, uint8_t *high, const uint16_t *points, int n, int bits)
{
    for (int k = 0; k < n; k++)
        low[k] = (uint8_t)points[k];
    for (int k = 0; bits && k < n; k += 8 / bits) {
        unsigned byte = 0;
        for (int j = 0; j < 8 / bits; j++)
            byte |= (unsigned)(points[k + j] >> 8) << (bits * j);
        *high++ = (uint8_t)byte;
    }
}

LANE void store_levels(uint8_t *p, const uint8_t *levels, int n)
{
    for (int j = 0; j < n; j += 2)
        p[j / 2] = (uint8_t)(levels[j] | levels[j + 1] << 4);
}

/* The units of zeros of an IQ3_S block take no room: in ggml, the low bytes and the signs of the units after
 * them move up. */
LANE void store_iq3_s_block(uint8_t *p, const uint16_t *points, const uint8_t *signs, const uint8_t *levels,
                            const bool *zero)
{
    uint8_t low[64], *to = p, *signs_to = p + 72;
    store_indices(low, p + 64, points, 64, 1);
    memset(p, 0, 64);
    memset(p + 72, 0, 32);
    for (int j = 0; j < 8; j++) {
        if (zero[j])
            continue;
        memcpy(to, low + 8 * j, 8);
        memcpy(signs_to, signs + 4 * j, 4);
        to += 8;
        signs_to += 4;
    }
    store_levels(p + 104, levels, 8);
}

/* A block, after its factor. */
LANE void store_grid_block(uint8_t *p, const uint16_t *points, const uint8_t *signs, const uint8_t *levels,
                           const bool *zero, enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_IQ2_XXS:
        for (int j = 0; j < 8; j++) {
            store_indices(p + 8 * j, NULL, points + 4 * j, 4, 0);
            store_signs_and_level(p + 8 * j + 4, signs + 4 * j, levels[j]);
        }
        break;
    case GGML_TYPE_IQ2_XS:
        for (int k = 0; k < 32; k++) {
            uint16_t both = (uint16_t)(points[k] | signs[k] << 9);
            memcpy(p + 2 * k, &both, sizeof both);
        }
        store_levels(p + 64, levels, 16);
        break;
    case GGML_TYPE_IQ2_S:
        store_indices(p, p + 64, points, 32, 2);
        memcpy(p + 32, signs, 32);
        store_levels(p + 72, levels, 16);
        break;
    case GGML_TYPE_IQ3_XXS:
        store_indices(p, NULL, points, 64, 0);
        for (int j = 0; j < 8; j++)
            store_signs_and_level(p + 64 + 4 * j, signs + 4 * j, levels[j]);
        break;
    default:
        store_iq3_s_block(p, points, signs, levels, zero);
    }
}

/* Without a grid (grids.h) the blocks are zeros, which quant_kernel_find will not take for ggml's. */
LANE void encode_grid(const struct batch *b, uint8_t *out, const struct grid_search *s)
{
    const struct quant_grid *g = quant_grid_of(s->type);
    const int n = SUPER_BLOCK / s->unit, n_supers = b->n_units / n;
    const size_t block_bytes = ggml_type_size(s->type);
    struct grid_fit fit;
    if (!g) {
        memset(out, 0, block_bytes * (size_t)n_supers);
        return;
    }
    for (int first = 0; first < b->n_units; first += LANES)
        grid_search_tile(&fit, b, first, g, s);
    for (int k = 0; k < n_supers; k++, out += block_bytes) {
        uint8_t levels[16];
        float factor = grid_levels(levels, fit.scale + k * n, n, s);
        store_fp16(out, factor);
        if (s->clears && factor == 0)
            memset(out + 2, 0, block_bytes - 2);
        else
            store_grid_block(out + 2, fit.points + k * (SUPER_BLOCK / s->size),
                             fit.signs + k * (SUPER_BLOCK / 8), levels, fit.zero + k * n, s->type);
    }
}

static void encode_iq2_xxs(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {.type = GGML_TYPE_IQ2_XXS,
                                              .unit = 32,
                                              .size = 8,
                                              .bits = 2,
                                              .top = 2,
                                              .steps = 6,
                                              .step = 0.1f,
                                              .zero = 1e-15f,
                                              .refits = true,
                                              .even = true,
                                              .again = AGAIN_ALL,
                                              .fudge = 1,
                                              .clears = true};
    encode_grid(b, out, &search);
}

static void encode_iq2_xs(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {.type = GGML_TYPE_IQ2_XS,
                                              .unit = 16,
                                              .size = 8,
                                              .bits = 2,
                                              .top = 2,
                                              .steps = 9,
                                              .step = 0.1f,
                                              .zero = 1e-15f,
                                              .even = true,
                                              .again = AGAIN_OFF,
                                              .fudge = 1,
                                              .clears = true};
    encode_grid(b, out, &search);
}

static void encode_iq2_s(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {.type = GGML_TYPE_IQ2_S,
                                              .unit = 16,
                                              .size = 8,
                                              .bits = 2,
                                              .top = 2,
                                              .steps = 9,
                                              .step = 0.1f,
                                              .zero = 1e-8f,
                                              .again = AGAIN_OFF,
                                              .fudge = 0.9875f};
    encode_grid(b, out, &search);
}

static void encode_iq3_xxs(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {.type = GGML_TYPE_IQ3_XXS,
                                              .unit = 32,
                                              .size = 4,
                                              .bits = 3,
                                              .top = 7,
                                              .steps = 15,
                                              .step = 0.2f,
                                              .zero = 1e-8f,
                                              .even = true,
                                              .again = AGAIN_OFF,
                                              .fudge = 1.0125f,
                                              .clears = true};
    encode_grid(b, out, &search);
}

static void encode_iq3_s(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {.type = GGML_TYPE_IQ3_S,
                                              .unit = 32,
                                              .size = 4,
                                              .bits = 3,
                                              .top = 7,
                                              .steps = 9,
                                              .step = 0.2f,
                                              .zero = 0,
                                              .again = AGAIN_IF_ANY_OFF,
                                              .fudge = 1.033f};
    encode_grid(b, out, &search);
}
