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
    bool shortens; /* the grid has short lists */
    float zero;    /* a unit whose largest magnitude is less is coded as zeros */
    bool refits; /* the first scale is make_qp_quants' for codes up to top + 1, not the largest magnitude's */
    bool even;   /* signs */
    enum grid_again again;
    float fudge; /* of the super-block's factor */
    bool clears; /* a super-block without a scale above zero is all zeros */
};

/* In a unit. */
LANE int grid_groups(const struct grid_search *s)
{
    return s->unit / s->size;
}

enum {
    GRID_UNIT = 32,     /* most weights in a unit */
    GRID_TRIED = 64,    /* groups of a unit whose words are kept: so many tries, times the unit's groups */
    GRID_OFF = 1 << 17, /* in a word: ggml had to search it */
    GRID_WORD = 0xffff,
    GRID_PARTS = LANES < 8 ? 8 / LANES : 1 /* vectors that a table of eight takes */
};

/* A tile of units. Some tries, at most GRID_TRIED / groups, are worked on together. */
struct grid_tile {
    _Alignas(64) float x[GRID_UNIT * LANES];          /* magnitudes, [weight of the group][group][lane] */
    _Alignas(64) float root[GRID_UNIT * LANES];       /* of w, the same: what neighbours are weighted by */
    _Alignas(64) float wx[GRID_UNIT * LANES];         /* [weight of the unit][lane] */
    const float *w;                                   /* the same */
    _Alignas(64) float scale[GRID_TRIED * LANES];     /* [try][lane] */
    _Alignas(64) int32_t words[GRID_TRIED * LANES];   /* [try][group][lane] */
    _Alignas(64) int32_t entries[GRID_TRIED * LANES]; /* the same: in the map of the grid */
    int32_t signs[GRID_UNIT / 8][LANES];
};

/* Of every unit of a batch. */
struct grid_fit {
    float scale[MAX_UNITS];
    bool zero[MAX_UNITS]; /* nothing in it to be coded; the rest is zero, too */
    uint16_t points[BATCH / 4];
    uint8_t signs[BATCH / 8];
};

/* ---- Magnitudes and signs --------------------------------------------------------------------------- */

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
    for (int k = 0; k < s->unit / 8; k++, x += 8 * LANES, w += 8 * LANES) {
        float magnitude[8 * LANES];
        vi signs = i_set(0), n_minus = i_set(0);
        for (int i = 0; i < 8; i++) {
            vf v = f_load(x + i * LANES);
            vm minus = f_lt(v, f_set(0));
            f_store(magnitude + i * LANES, f_abs(v));
            signs = i_pick(minus, signs + (1 << i), signs);
            n_minus = i_pick(minus, n_minus + 1, n_minus);
        }
        if (s->even)
            signs = grid_even_signs(magnitude, w, signs, n_minus);
        i_store(t->signs[k], signs);
        for (int i = 0; i < 8; i++) {
            vf v = f_load(magnitude + i * LANES), q = f_load(w + i * LANES);
            int group = (8 * k + i) / s->size, at = (i % s->size * grid_groups(s) + group) * LANES;
            f_store(t->x + at, v);
            f_store(t->root + at, f_sqrt(q));
            f_store(t->wx + (8 * k + i) * LANES, q * v);
        }
    }
}

/* ---- Code words ------------------------------------------------------------------------------------- */

/* The codes of a group of weights as a word. `close`: where no weight is nearly half-way between two codes.
 * small: no product exceeds ROUNDING_MOST in magnitude. */
LANE vi grid_word(vm *close, const float *x, int stride, vf per_unit, const struct grid_search *s, bool small)
{
    vf word = f_set(0), off = f_set(0);
    for (int i = s->size - 1; i >= 0; i--) {
        vf y = 0.5f * (per_unit * f_load(x + i * stride) - 1), code;
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

/* What pass 1 and 2 know of the magnitudes of the units that they are to code. */
struct grid_units {
    vm alive;
    vf least, most;
};

/* The words of all groups of a try.
 *
 * Where the weights are close to their codes the short lists give the same neighbour. A coordinate's term
 * |value * scale - x|, rounded at each operation, grows (or stays) with the distance of the value from the
 * code if the code's own is the least; so it is, unless x is within rounding of half-way to the next code,
 * which is far less than the 1e-4 of a step that grid_word asks for as long as the scale and its reciprocal
 * are normal numbers. Weights and sums keep that order: a neighbour on the way to another has no larger
 * error, and wins a tie because it comes first. */
LANE void grid_words(struct grid_tile *t, int try, vf per_unit, vf scale, const struct grid_units *u,
                     const struct grid_search *s)
{
    int32_t *words = t->words + try * grid_groups(s) * LANES;
    vm normal = m_and(f_lt(f_set(1e-30f), scale), f_lt(scale, f_set(1e30f)));
    vm small = m_or(m_not(u->alive), is_small(per_unit * u->least, per_unit * u->most));
    bool all_small = m_bits(small) == (1u << LANES) - 1;
    f_store(t->scale + try * LANES, scale);
    for (int k = 0; k < grid_groups(s); k++) {
        vm close;
        vi word;
        if (all_small)
            word = grid_word(&close, t->x + k * LANES, grid_groups(s) * LANES, per_unit, s, true);
        else
            word = grid_word(&close, t->x + k * LANES, grid_groups(s) * LANES, per_unit, s, false);
        if (s->shortens)
            word = i_pick(m_and(close, normal), word + GRID_SHORT, word);
        i_store(words + k * LANES, word);
    }
}

/* ---- Neighbours ------------------------------------------------------------------------------------- */

/* Values of codes. */
static const float grid_values[2][16] = {{1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7},
                                         {1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15}};

/* Errors of eight neighbours; what can not win in ggml is FLT_MAX. */
LANE ef grid_errors(const ef *terms, const uint16_t *list, const struct grid_search *s)
{
    ei words = e_load_words(list);
    ef error = s->bits == 2 ? e_of_four(terms[0], words) : e_of_eight(terms[0], words);
    for (int i = 1; i < s->size; i++)
        error +=
            s->bits == 2 ? e_of_four(terms[i], words >> (2 * i)) : e_of_eight(terms[i], words >> (3 * i));
    return e_least(error, e_set(FLT_MAX));
}

/* The first neighbour with the least error, of 8 n. */
LANE uint16_t grid_nearest(const ef *terms, const uint16_t *list, int n, const struct grid_search *s)
{
    ef error = grid_errors(terms, list, s), next, least;
    if (n == 1)
        return list[__builtin_ctz(e_le(error, e_least_of_all(error)))];
    if (n == 2) {
        next = grid_errors(terms, list + 8, s);
        least = e_least_of_all(e_least(error, next));
        return list[__builtin_ctz(e_le(error, least) | e_le(next, least) << 8)];
    }
    least = e_least_of_all(error);
    const uint16_t *best = list + __builtin_ctz(e_le(error, least));
    for (int k = 1; k < n; k++) {
        error = grid_errors(terms, list + 8 * k, s);
        next = e_least_of_all(error);
        if (next[0] < least[0]) {
            least = next;
            best = list + 8 * k + __builtin_ctz(e_le(error, least));
        }
    }
    return *best;
}

/* Replaces words, whose places in t->words are given, by neighbours out of n times 8, or as many as there
 * are if n is 0. */
LANE void grid_replace(struct grid_tile *t, const int32_t *places, int n_places, int n,
                       const struct quant_grid *g, const struct grid_search *s)
{
    const unsigned per_try = (unsigned)grid_groups(s) * LANES;
    const ef values = e_load(grid_values[s->bits - 2]);
    for (int item = 0; item < n_places; item++) {
        const unsigned place = (unsigned)places[item];
        const float *x = t->x + place % per_try, *root = t->root + place % per_try;
        const int32_t entry = t->entries[place];
        const ef scaled = e_set(t->scale[place / per_try * LANES + place % LANES]) * values;
        ef terms[8];
        for (unsigned i = 0; i < (unsigned)s->size; i++) {
            ef d = scaled - e_set(x[i * per_try]);
            terms[i] = e_set(root[i * per_try]) * d * d;
        }
        t->words[place] = grid_nearest(terms, grid_list(g, entry), n ? n : grid_steps(entry), s) | GRID_OFF;
    }
}

/* Makes points of the words of the first so many tries. */
LANE void grid_points(struct grid_tile *t, int tries, vm alive, const struct quant_grid *g,
                      const struct grid_search *s)
{
    const int n = tries * grid_groups(s) * LANES;
    int32_t one[(GRID_TRIED + 1) * LANES], two[(GRID_TRIED + 1) * LANES], more[(GRID_TRIED + 1) * LANES];
    int n_one = 0, n_two = 0, n_more = 0;
    for (int at = 0; at < n; at++)
        t->entries[at] = g->map[t->words[at]];
    for (int at = 0; at < n; at += LANES) {
        vi entry = i_load(t->entries + at), steps = ~entry & 255, places = i_lanes() + at;
        vm off = m_and(alive, i_lt(entry, i_set(0))), is_one = i_eq(steps, i_set(1)),
           is_two = i_eq(steps, i_set(2));
        i_store(t->words + at, i_load(t->words + at) & GRID_WORD);
        n_one += i_squeeze(one + n_one, m_and(off, is_one), places);
        n_two += i_squeeze(two + n_two, m_and(off, is_two), places);
        n_more += i_squeeze(more + n_more, m_andnot(m_andnot(off, is_one), is_two), places);
    }
    grid_replace(t, one, n_one, 1, g, s);
    grid_replace(t, two, n_two, 2, g, s);
    grid_replace(t, more, n_more, 0, g, s);
}

/* ---- Scales ----------------------------------------------------------------------------------------- */

/* The sums of the fit of a scale to the words of all groups. */
LANE void grid_sums(vf *sum_qx, vf *sum_q2, const struct grid_tile *t, const int32_t *words,
                    const struct grid_search *s)
{
    vf values[GRID_PARTS], qx = f_set(0), q2 = f_set(0);
    for (int p = 0; p < GRID_PARTS; p++)
        values[p] = f_load(grid_values[s->bits - 2] + p * LANES);
    for (int k = 0; k < grid_groups(s); k++) {
        vi word = i_load(words + k * LANES);
        for (int i = 0; i < s->size; i++) {
            int at = (k * s->size + i) * LANES;
            vi code = word >> (s->bits * i);
            vf q = s->bits == 2 ? f_of_four(values, code) : f_of_eight(values, code);
            qx += f_load(t->wx + at) * q;
            q2 += f_load(t->w + at) * q * q;
        }
    }
    *sum_qx = qx;
    *sum_q2 = q2;
}

/* Pass 1, with `scale` if no fit is good. Returns the scales; `words`: of the best tries, [group][lane]. */
LANE vf grid_first_pass(struct grid_tile *t, int32_t *words, const struct grid_units *u, vf range, vf scale,
                        const struct quant_grid *g, const struct grid_search *s)
{
    vf best = f_set(0);
    for (int k = 0; k < grid_groups(s); k++)
        i_store(words + k * LANES, i_set(s->again == AGAIN_IF_ANY_OFF ? GRID_OFF : 0));
    for (int first = -s->steps; first <= s->steps; first += GRID_TRIED / grid_groups(s)) {
        int n = s->steps + 1 - first < GRID_TRIED / grid_groups(s) ? s->steps + 1 - first
                                                                   : GRID_TRIED / grid_groups(s);
        for (int k = 0; k < n; k++) {
            vf per_unit = ((float)(2 * s->top + 1) + (float)(first + k) * s->step) / range;
            grid_words(t, k, per_unit, 1 / per_unit, u, s);
        }
        grid_points(t, n, u->alive, g, s);
        for (int k = 0; k < n; k++) {
            const int32_t *tried = t->words + k * grid_groups(s) * LANES;
            vf qx, q2;
            grid_sums(&qx, &q2, t, tried, s);
            vm won = m_and(f_lt(f_set(0), q2), f_lt(best * q2, qx * qx));
            scale = f_pick(won, qx / q2, scale);
            best = f_pick(won, scale * qx, best);
            for (int j = 0; j < grid_groups(s); j++)
                i_store(words + j * LANES, i_pick(won, i_load(tried + j * LANES), i_load(words + j * LANES)));
        }
    }
    return scale;
}

/* Pass 2. */
LANE vf grid_second_pass(struct grid_tile *t, int32_t *words, const struct grid_units *u, vf scale,
                         const struct quant_grid *g, const struct grid_search *s)
{
    struct grid_units again = *u;
    vi off = i_set(s->again == AGAIN_ALL ? GRID_OFF : 0);
    for (int k = 0; k < grid_groups(s); k++)
        off |= i_load(words + k * LANES);
    again.alive = m_and(u->alive, f_lt(f_set(0), scale));
    again.alive = m_andnot(again.alive, i_lt(off, i_set(GRID_OFF)));
    if (m_bits(again.alive) == 0)
        return scale;
    grid_words(t, 0, 1 / scale, scale, &again, s);
    grid_points(t, 1, again.alive, g, s);
    for (int k = 0; k < grid_groups(s); k++) {
        vi word = i_load(words + k * LANES);
        vm here = again.alive;
        if (s->again == AGAIN_OFF)
            here = m_andnot(here, i_lt(word, i_set(GRID_OFF)));
        i_store(words + k * LANES, i_pick(here, i_load(t->words + k * LANES), word));
    }
    vf qx, q2;
    grid_sums(&qx, &q2, t, words, s);
    return f_pick(m_and(again.alive, f_lt(f_set(0), q2)), qx / q2, scale);
}

/* What is kept of a tile whose first unit is `first`. Negative scales turn all signs. */
LANE void grid_keep(struct grid_fit *fit, const struct grid_tile *t, const int32_t *words, vf scale, vm alive,
                    int first, int n_units, const struct quant_grid *g, const struct grid_search *s)
{
    const unsigned lives = m_bits(alive), turns = m_bits(f_lt(scale, f_set(0)));
    f_store(fit->scale + first, f_pick(alive, f_abs(scale), f_set(0)));
    for (int lane = 0; lane < LANES && first + lane < n_units; lane++) {
        uint16_t *points = fit->points + (first + lane) * grid_groups(s);
        uint8_t *signs = fit->signs + (first + lane) * (s->unit / 8);
        const bool live = lives >> lane & 1;
        fit->zero[first + lane] = !live;
        for (int k = 0; k < grid_groups(s); k++)
            points[k] = live ? (uint16_t)g->map[words[k * LANES + lane] & GRID_WORD] : 0;
        for (int k = 0; k < s->unit / 8; k++) {
            int32_t bits = turns >> lane & 1 ? ~t->signs[k][lane] : t->signs[k][lane];
            signs[k] = live ? (uint8_t)(bits & (s->even ? 127 : 255)) : 0;
        }
    }
}

/* The units from `first` on. */
LANE void grid_search_tile(struct grid_fit *fit, const struct batch *b, int first, const struct quant_grid *g,
                           const struct grid_search *s)
{
    struct grid_tile t;
    struct grid_units u;
    int32_t words[GRID_UNIT / 4 * LANES];
    grid_load(&t, b->x + first * s->unit, b->w + first * s->unit, s);
    u.least = u.most = f_load(t.x);
    for (int i = 1; i < s->unit; i++) {
        u.least = f_least(u.least, f_load(t.x + i * LANES));
        u.most = f_most(u.most, f_load(t.x + i * LANES));
    }
    u.alive = s->zero > 0 ? m_not(f_lt(u.most, f_set(s->zero))) : f_ne(u.most, f_set(0));
    vf range = u.most, scale = u.most / (float)(2 * s->top + 1);
    if (s->refits) {
        vi codes[GRID_UNIT];
        _Alignas(64) float x[GRID_UNIT * LANES];
        for (int i = 0; i < s->unit; i++)
            f_store(x + i * LANES, f_load(t.x + (i % s->size * grid_groups(s) + i / s->size) * LANES));
        scale = refit_tile(codes, x, t.w, LANES, s->unit, s->top + 2);
        range = scale * (float)(s->top + 1);
        u.alive = m_andnot(u.alive, f_le(range, f_set(0)));
    }
    scale = grid_first_pass(&t, words, &u, range, scale, g, s);
    scale = grid_second_pass(&t, words, &u, scale, g, s);
    grid_keep(fit, &t, words, scale, u.alive, first, b->n_units, g, s);
}

/* ---- Super-blocks ----------------------------------------------------------------------------------- */

LANE float grid_most(const float *scale, int n)
{
    float most = 0;
    for (int j = 0; j < n; j++)
        most = most > scale[j] ? most : scale[j];
    return most;
}

/* Pass 3: the integers of n units, the largest scale of which is given; returns the factor. */
LANE float grid_levels(uint8_t *levels, const float *scale, int n, float most)
{
    memset(levels, 0, (size_t)n);
    if (most == 0)
        return 0;
    float d = most / 31, per_unit = 1 / d;
    for (int j = 0; j < n; j++) {
        int32_t level = nearest_one(0.5f * (per_unit * scale[j] - 1));
        levels[j] = (uint8_t)(level < 0 ? 0 : level > 15 ? 15 : level);
    }
    return d;
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
        float most = grid_most(fit.scale + k * n, n),
              factor = grid_levels(levels, fit.scale + k * n, n, most);
        store_fp16(out, factor * s->fudge);
        if (s->clears && most == 0)
            memset(out + 2, 0, block_bytes - 2);
        else
            store_grid_block(out + 2, fit.points + k * (SUPER_BLOCK / s->size),
                             fit.signs + k * (SUPER_BLOCK / 8), levels, fit.zero + k * n, s->type);
    }
}

static void encode_iq2_xxs(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {
        GGML_TYPE_IQ2_XXS, 32, 8, 2, 2, 6, 0.1f, true, 1e-15f, true, true, AGAIN_ALL, 1, true};
    encode_grid(b, out, &search);
}

static void encode_iq2_xs(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {GGML_TYPE_IQ2_XS, 16,    8,    2,         2, 9,   0.1f, true,
                                              1e-15f,           false, true, AGAIN_OFF, 1, true};
    encode_grid(b, out, &search);
}

static void encode_iq2_s(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {
        GGML_TYPE_IQ2_S, 16, 8, 2, 2, 9, 0.1f, false, 1e-8f, false, false, AGAIN_OFF, 0.9875f, false};
    encode_grid(b, out, &search);
}

static void encode_iq3_xxs(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {
        GGML_TYPE_IQ3_XXS, 32, 4, 3, 7, 15, 0.2f, true, 1e-8f, false, true, AGAIN_OFF, 1.0125f, true};
    encode_grid(b, out, &search);
}

static void encode_iq3_s(const struct batch *b, uint8_t *out)
{
    static const struct grid_search search = {
        GGML_TYPE_IQ3_S, 32, 4, 3, 7, 9, 0.2f, true, 0, false, false, AGAIN_IF_ANY_OFF, 1.033f, false};
    encode_grid(b, out, &search);
}
