/* search_splits.h - the best split of a unit of three values: the first step of search_ternary.h, which says
 * what a split is.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). This is where ggml spends its time. Nearly all splits are ruled out
 * here without computing what ggml computes of them. But for rounding,
 *
 *     sum_qx = c - S(low) - S(high),   sum_q2 = e + D(low) - D'(high),
 *
 * S(i) being the sum of w x of the first i weights, D and D' sums of w that depend on the shifts, and c and e
 * not on the split. With a bound T on the score, sum_qx^2 < T sum_q2 becomes
 *
 *     2 S(low) S(high) + { S(high)^2 - 2 c S(high) + T (D'(high) - e) } < T D(low) - (c - S(low))^2,
 *
 * where each side and the braces depend on one end of the split only: a multiplication for the split, an
 * addition and a comparison for each choice of shifts. T comes from the score of a good split, found by a
 * coarse search and one step from the scale of its best to the split that is best for that scale.
 *
 * Why the result is ggml's. ggml replaces its best by a split whose computed score is above the best's by
 * more than K = 5 * 2^-24 in proportion, and never by one that is below it by more. If among the scores from
 * (1 - H) of the highest one up to it there is a gap of K without any, then the first split above the gap
 * replaces the best whatever that is, nothing below the gap does from then on, and so the end is the same for
 * every subset of the splits, tried in ggml's order, that holds all above the gap. There is a gap if fewer
 * than H / K splits, with the choices, have such a score. So H is small at first, and if as many splits had
 * to be tried, all is done again with an H for which there cannot be as many: 1122 of IQ1_S, 612 of IQ1_M.
 *
 * What rounding makes of both sides, and of the sums that ggml computes, is bounded by the slack: with A the
 * sum of |w x| and W of w it is less than 200 A^2 2^-24 + 100 T W 2^-24. (The highest score is at least
 * 0.6 A^2 / W, for the split by sign has that, and at most 81 A^2 / W, as sum_q2 is at least W / 64.) Units
 * of which it is not certain that nothing overflows or is nearly denormal try all splits. */

#define NEAR_BEST 0x1p-15f /* H at first */
#define NEAR_ENOUGH 100    /* as many splits are too many for it */
#define NEAR_ANY 0x1p-11f  /* H then */
#define SHIFT 0.125f

enum {
    TERNARY_UNIT = 32,   /* most weights in a unit */
    TERNARY_CHOICES = 4, /* most choices of shifts: bit 1: minus in the first half, bit 0: in the second */
    TERNARY_PAD = 3      /* splits are ruled out four at a time */
};

struct ternary_spec {
    int unit;
    bool halves;      /* have their own shifts: four choices, not two */
    float negligible; /* a unit whose largest magnitude is less is coded as nothing */
};

/* A tile of units, sorted by value; [.][lane] all. */
struct ternary_tile {
    vf x[TERNARY_UNIT], w[TERNARY_UNIT];
    vi order[TERNARY_UNIT]; /* places in the unit */
    /* Of w x and w of the first i. */
    vf sum_x[TERNARY_UNIT + 1 + TERNARY_PAD], sum_w[TERNARY_UNIT + 1];
    /* What rules splits out, of each choice. */
    vf c[TERNARY_CHOICES], e[TERNARY_CHOICES], d[TERNARY_CHOICES][TERNARY_UNIT + 1];
    vf high_end[TERNARY_CHOICES][TERNARY_UNIT + 1 + TERNARY_PAD];
    vf floor;            /* a score that the best is known to have */
    vf error_x, error_w; /* of sum_qx and sum_q2, at most */
    vf slack_x, slack_w; /* the slack is slack_x + T * slack_w */
    vm certain;
    /* The best split. */
    vf score, scale;
    vi low, high, choice;
    /* IQ1_M: terms of sum_qx and sum_q2 by choice and code, and their sums over the weights before `low`. */
    vf qx[TERNARY_CHOICES][3][TERNARY_UNIT / 2], q2[TERNARY_CHOICES][3][TERNARY_UNIT / 2];
    vf qx_before[TERNARY_CHOICES], q2_before[TERNARY_CHOICES];
};

/* Of every unit of a batch. */
struct ternary_fit {
    float scale[MAX_UNITS];
    int32_t choice[MAX_UNITS];
    int32_t words[2][MAX_UNITS]; /* codes of the first 16 weights, of the others */
    int32_t empty[MAX_UNITS];    /* -1: nothing is coded, all points are the first; 0 */
    int32_t off[MAX_UNITS];      /* -1: the word of a group was no point; 0 */
    bool failed[MAX_UNITS];      /* no neighbour has an error that is a number */
    int32_t near[MAX_UNITS];     /* bit k: the short list of neighbours serves for group k */
    int32_t certain[MAX_UNITS];  /* -1: nothing overflows; 0 */
};

/* Half h of a unit has the negative shift in choice k. */
LANE bool shift_is_minus(int k, int h)
{
    return k >> (1 - h) & 1;
}

LANE float ternary_value(int code, bool minus)
{
    return (float)(code - 1) + (minus ? -SHIFT : SHIFT);
}

/* ---- Sorting ----------------------------------------------------------------------------------------- */

/* Batcher's odd-even merge sort of n keys in every lane, n a power of two. */
LANE void sort_keys(vi *key, int n)
{
#pragma GCC unroll 8
    for (int p = 1; p < n; p *= 2)
#pragma GCC unroll 8
        for (int k = p; k >= 1; k /= 2)
#pragma GCC unroll 32
            for (int j = k % p; j + k < n; j += 2 * k)
                for (int i = j; i < j + k && i + k < n; i++)
                    if (i / (2 * p) == (i + k) / (2 * p)) {
                        vi a = key[i], b = key[i + k];
                        key[i] = i_least(a, b);
                        key[i + k] = i_most(a, b);
                    }
}

/* As ggml sorts a unit: the order of equal weights is the C library's. */
static void sort_by_library(struct ternary_tile *t, const float *x, int n, int lane)
{
    struct quant_pair pairs[TERNARY_UNIT];
    for (int i = 0; i < n; i++)
        pairs[i] = (struct quant_pair){x[i * LANES + lane], i};
    quant_sort_pairs(pairs, n);
    for (int i = 0; i < n; i++) {
        t->x[i][lane] = pairs[i].value;
        t->order[i][lane] = pairs[i].place;
    }
}

/* Lanes whose n sorted weights are in the order that the C library would give them. */
LANE vm in_order(const struct ternary_tile *t, int n)
{
    const bool stable = quant_sort_is_stable();
    vm rises = m_not(m_none());
    for (int i = 1; i < n; i++) {
        vm right = f_lt(t->x[i - 1], t->x[i]);
        if (stable)
            right = m_or(right, m_and(f_le(t->x[i - 1], t->x[i]), i_lt(t->order[i - 1], t->order[i])));
        rises = m_and(rises, right);
    }
    return rises;
}

/* Keys are weights whose lowest bits are replaced by their places. As a rule that sorts them; it does not if
 * some are nearly equal, or equal and the C library has an order of its own for them. alive: the lanes that
 * matter. */
LANE void sort_tile(struct ternary_tile *t, const float *x, const float *w, int n, vm alive)
{
    vi key[TERNARY_UNIT];
    for (int i = 0; i < n; i++) {
        vi bits = (vi)f_load(x + i * LANES);
        key[i] = ((bits ^ ((bits >> 31) & 0x7fffffff)) & -n) | i;
    }
    sort_keys(key, n);
    for (int i = 0; i < n; i++) {
        t->order[i] = key[i] & (n - 1);
        t->x[i] = f_of_rows(x, t->order[i]);
    }
    for (unsigned lanes = m_bits(m_andnot(alive, in_order(t, n))); lanes; lanes &= lanes - 1)
        sort_by_library(t, x, n, __builtin_ctz(lanes));
    for (int i = 0; i < n; i++)
        t->w[i] = f_of_rows(w, t->order[i]);
}

/* ---- What ggml computes of a split ------------------------------------------------------------------- */

LANE void try_sums(struct ternary_tile *t, vf qx, vf q2, int low, int high, int choice)
{
    vm won = m_and(f_lt(f_set(0), q2), f_lt(t->score * q2, qx * qx));
    vf scale = qx / q2;
    t->scale = f_pick(won, scale, t->scale);
    t->score = f_pick(won, scale * qx, t->score);
    t->low = i_pick(won, i_set(low), t->low);
    t->high = i_pick(won, i_set(high), t->high);
    t->choice = i_pick(won, i_set(choice), t->choice);
}

/* IQ1_S: from sums over the first weights. */
LANE void try_by_sums(struct ternary_tile *t, int low, int high, int n, bool minus)
{
    const float q0 = ternary_value(0, minus), q1 = ternary_value(1, minus), q2 = ternary_value(2, minus);
    vf x0 = t->sum_x[low] - t->sum_x[0], x1 = t->sum_x[high] - t->sum_x[low],
       x2 = t->sum_x[n] - t->sum_x[high];
    vf w0 = t->sum_w[low] - t->sum_w[0], w1 = t->sum_w[high] - t->sum_w[low],
       w2 = t->sum_w[n] - t->sum_w[high];
    try_sums(t, x0 * q0 + x1 * q1 + x2 * q2, w0 * q0 * q0 + w1 * q1 * q1 + w2 * q2 * q2, low, high,
             minus ? 3 : 0);
}

/* IQ1_M: weight by weight. */
LANE void try_by_terms(struct ternary_tile *t, int low, int high, int n, int choice)
{
    vf qx = t->qx_before[choice], q2 = t->q2_before[choice];
    for (int i = low; i < high; i++) {
        qx += t->qx[choice][1][i];
        q2 += t->q2[choice][1][i];
    }
    for (int i = high; i < n; i++) {
        qx += t->qx[choice][2][i];
        q2 += t->q2[choice][2][i];
    }
    try_sums(t, qx, q2, low, high, choice);
}

LANE void make_terms(struct ternary_tile *t, int n)
{
    for (int i = 0; i < n; i++) {
        vm second = i_lt(i_set(n / 2 - 1), t->order[i]);
        for (int code = 0; code < 3; code++) {
            const float plus = ternary_value(code, false), minus = ternary_value(code, true);
            vf p = t->w[i] * plus, m = t->w[i] * minus;
            vf px = p * t->x[i], mx = m * t->x[i], p2 = p * plus, m2 = m * minus;
            for (int k = 0; k < TERNARY_CHOICES; k++) {
                bool first_minus = shift_is_minus(k, 0), second_minus = shift_is_minus(k, 1);
                t->qx[k][code][i] = f_pick(second, second_minus ? mx : px, first_minus ? mx : px);
                t->q2[k][code][i] = f_pick(second, second_minus ? m2 : p2, first_minus ? m2 : p2);
            }
        }
    }
}

/* The k-th choice that ggml tries, of n_choices. */
LANE void try_split(struct ternary_tile *t, int low, int high, int k, const struct ternary_spec *s)
{
    if (s->halves)
        try_by_terms(t, low, high, s->unit, k);
    else
        try_by_sums(t, low, high, s->unit, k);
}

/* ---- Ruling splits out ------------------------------------------------------------------------------- */

LANE int n_choices(const struct ternary_spec *s)
{
    return s->halves ? 4 : 2;
}

/* How far sums can be trusted, and how high the best score is at least. magnitude: the sum of |w x|; least_w:
 * zero, or the least w if that is negative. No split of a lane is tried that is not alive or has only zeros
 * for w. */
LANE void set_certainty(struct ternary_tile *t, vf magnitude, vf sum_w, vf least_w, vm alive)
{
    vf square = magnitude * magnitude, least_score = square / sum_w;
    vf lowest = f_least(f_least(square, sum_w), least_score),
       most = f_most(f_most(square, sum_w), least_score);
    vm in_range = m_and(f_le(f_set(0x1p-96f), lowest), f_le(most, f_set(0x1p96f)));
    t->certain = m_andnot(in_range, f_ne(least_w, f_set(0)));
    t->floor = f_pick(t->certain, 0.6f * least_score, f_set(0));
    t->error_x = 0x1p-17f * magnitude;
    t->error_w = 0x1p-17f * sum_w;
    t->slack_x = f_pick(t->certain, 0x1p-16f * square, f_set(INFINITY));
    vm weighs = m_or(f_ne(sum_w, f_set(0)), f_ne(least_w, f_set(0)));
    t->slack_x = f_pick(m_and(alive, weighs), t->slack_x, f_set(-INFINITY));
    t->slack_w = f_pick(t->certain, 0x1p-17f * sum_w, f_set(0));
}

/* Sums over the first weights, and what splits are ruled out by but for the bound. */
LANE void make_sums(struct ternary_tile *t, vm alive, const struct ternary_spec *s)
{
    const int n = s->unit, choices = n_choices(s);
    vf sum_x = f_set(0), sum_w = f_set(0), magnitude = f_set(0), least_w = f_set(0);
    vf minus_x[TERNARY_CHOICES], minus_w[TERNARY_CHOICES]; /* over weights that have the negative shift */
    for (int k = 0; k < choices; k++)
        minus_x[k] = minus_w[k] = f_set(0);
    for (int i = 0; i <= n; i++) {
        t->sum_x[i] = sum_x;
        t->sum_w[i] = sum_w;
        for (int k = 0; k < choices; k++)
            t->d[k][i] = 0.75f * sum_w + 0.5f * minus_w[k];
        if (i == n)
            break;
        vf w = t->w[i], wx = w * t->x[i];
        sum_x += wx;
        sum_w += w;
        magnitude += f_abs(wx);
        least_w = f_least(w, least_w);
        if (s->halves) {
            vm second = i_lt(i_set(n / 2 - 1), t->order[i]);
            minus_x[1] += f_pick(second, wx, f_set(0));
            minus_w[1] += f_pick(second, w, f_set(0));
            minus_x[2] += f_pick(second, f_set(0), wx);
            minus_w[2] += f_pick(second, f_set(0), w);
        }
        minus_x[choices - 1] = sum_x;
        minus_w[choices - 1] = sum_w;
    }
    for (int i = n + 1; i <= n + TERNARY_PAD; i++)
        t->sum_x[i] = f_set(0);
    for (int k = 0; k < choices; k++) {
        t->c[k] = 1.125f * sum_x - 0.25f * minus_x[k];
        t->e[k] = 1.265625f * sum_w - 0.5f * minus_w[k];
        for (int i = n + 1; i <= n + TERNARY_PAD; i++)
            t->high_end[k][i] = f_set(-INFINITY);
    }
    set_certainty(t, magnitude, sum_w, least_w, alive);
}

/* One end of the inequality for a bound on the score. */
LANE void set_high_ends(struct ternary_tile *t, vf bound, const struct ternary_spec *s)
{
    const int choices = n_choices(s);
    for (int k = 0; k < choices; k++)
        for (int i = 0; i <= s->unit; i++)
            t->high_end[k][i] =
                t->sum_x[i] * (t->sum_x[i] - 2 * t->c[k]) + bound * (t->d[choices - 1 - k][i] - t->e[k]);
}

/* Lanes in which a split cannot win with any choice. */
LANE vm ruled_out(const struct ternary_tile *t, vf twice_sum, const vf *low_end, int high, int choices)
{
    vf product = twice_sum * t->sum_x[high];
    vm out = f_lt(product + t->high_end[0][high], low_end[0]);
    for (int k = 1; k < choices; k++)
        out = m_and(out, f_lt(product + t->high_end[k][high], low_end[k]));
    return out;
}

/* A split of the tile, each lane's own, that is good. */
struct ternary_seed {
    vf score, scale;
    vf low, high; /* in units of the scale: up to where codes are 0, from where on they are 2 */
};

/* Takes a split with choice k if its score is higher, reckoned so low that ggml's is no lower. sums:
 * S(low) + S(high); d: D(low) - D'(high). */
LANE void seed_choice(struct ternary_seed *best, const struct ternary_tile *t, vf sums, vf d, int k,
                      const struct ternary_spec *s)
{
    const int n_minus = s->halves ? shift_is_minus(k, 0) + shift_is_minus(k, 1) : 2 * k;
    vf qx = t->c[k] - sums - t->error_x, q2 = t->e[k] + d + t->error_w;
    vf scale = qx / q2, score = scale * qx;
    vm won = m_and(f_lt(f_set(0), qx), f_lt(best->score, score));
    best->score = f_pick(won, score, best->score);
    best->scale = f_pick(won, scale, best->scale);
    best->low = f_pick(won, f_set(-0.375f - SHIFT * (float)n_minus), best->low);
    best->high = f_pick(won, f_set(0.625f - SHIFT * (float)n_minus), best->high);
}

LANE vf rows_of(const vf *rows, vi at)
{
    return f_of_rows((const float *)rows, at);
}

/* Splits in the same places in all lanes. */
LANE void seed_grid(struct ternary_seed *best, const struct ternary_tile *t, const struct ternary_spec *s)
{
    const int step = s->unit / 8, choices = n_choices(s);
    for (int low = step; low <= s->unit / 2; low += step)
        for (int high = s->unit / 2; high <= s->unit - step; high += step)
            for (int k = 0; k < choices; k += choices - 1)
                seed_choice(best, t, t->sum_x[low] + t->sum_x[high],
                            t->d[k][low] - t->d[choices - 1 - k][high], k, s);
}

/* The split by the best scale so far. */
LANE void seed_step(struct ternary_seed *best, const struct ternary_tile *t, const struct ternary_spec *s)
{
    const int choices = n_choices(s);
    vf low_end = best->scale * best->low, high_end = best->scale * best->high;
    vi low = i_set(0), high = i_set(0);
    for (int i = 0; i < s->unit; i++) {
        low = i_count(low, f_lt(t->x[i], low_end));
        high = i_count(high, f_lt(t->x[i], high_end));
    }
    vf sums = rows_of(t->sum_x, low) + rows_of(t->sum_x, high);
    for (int k = 0; k < choices; k++)
        seed_choice(best, t, sums, rows_of(t->d[k], low) - rows_of(t->d[choices - 1 - k], high), k, s);
}

LANE vf seed_score(const struct ternary_tile *t, const struct ternary_spec *s)
{
    struct ternary_seed best = {f_set(0), f_set(0), f_set(0), f_set(0)};
    seed_grid(&best, t, s);
    seed_step(&best, t, s);
    return best.score;
}

/* Tries the splits of a row, those with one `low`, that are not ruled out; returns how many. */
LANE int try_row(struct ternary_tile *t, vf bound, int low, const struct ternary_spec *s)
{
    const int n = s->unit, choices = n_choices(s);
    const unsigned all = (1u << LANES) - 1;
    vf low_end[TERNARY_CHOICES], twice_sum = 2 * t->sum_x[low], slack = t->slack_x + bound * t->slack_w;
    int tried = 0;
    for (int k = 0; k < choices; k++) {
        vf rest = t->c[k] - t->sum_x[low];
        low_end[k] = bound * t->d[k][low] - rest * rest - slack;
    }
    for (int high = low; high <= n; high += 1 + TERNARY_PAD) {
        vm out = ruled_out(t, twice_sum, low_end, high, choices);
        for (int i = 1; i <= TERNARY_PAD; i++)
            out = m_and(out, ruled_out(t, twice_sum, low_end, high + i, choices));
        if (m_bits(out) == all)
            continue;
        unsigned left = 0;
        for (int i = 0; i <= TERNARY_PAD; i++)
            for (int k = 0; k < choices; k++) {
                vf product = twice_sum * t->sum_x[high + i];
                unsigned bits = m_bits(f_lt(product + t->high_end[k][high + i], low_end[k]));
                left |= (unsigned)(bits != all) << (i * choices + k);
            }
        if (high + TERNARY_PAD > n)
            left &= (1u << ((n + 1 - high) * choices)) - 1;
        tried += __builtin_popcount(left);
        for (; left; left &= left - 1) {
            int at = __builtin_ctz(left);
            try_split(t, low, high + at / choices, at % choices, s);
        }
    }
    return tried;
}

/* Tries all splits that may have a score within the margin of the best; returns how many. */
LANE int try_splits(struct ternary_tile *t, float margin, const struct ternary_spec *s)
{
    const int choices = n_choices(s);
    vf floor = t->floor, bound = (1 - margin) * floor;
    int tried = 0;
    t->score = f_set(-FLT_MAX);
    t->low = t->high = t->choice = i_set(-1);
    for (int k = 0; k < TERNARY_CHOICES; k++)
        t->qx_before[k] = t->q2_before[k] = f_set(0);
    set_high_ends(t, bound, s);
    for (int low = 0; low <= s->unit; low++) {
        tried += try_row(t, bound, low, s);
        t->floor = f_most(t->floor, t->score);
        if (m_bits(f_lt(1.005f * floor, t->floor)) != 0) {
            floor = t->floor;
            bound = (1 - margin) * floor;
            set_high_ends(t, bound, s);
        }
        if (!s->halves || low == s->unit)
            continue;
        for (int k = 0; k < choices; k++) {
            t->qx_before[k] += t->qx[k][0][low];
            t->q2_before[k] += t->q2[k][0][low];
        }
    }
    return tried;
}

/* 2 - code of each. */
LANE vi turned_codes(vi words)
{
    return words ^ (~i_up(words, i_set(1)) & (int32_t)0xaaaaaaaa);
}

/* The lowest value in half h of the units. */
LANE vf least_value(vi choice, int h)
{
    return f_pick(i_eq(choice & (2 >> h), i_set(0)), f_set(ternary_value(0, false)),
                  f_set(ternary_value(0, true)));
}

/* Bit k: every weight of group k is as near to its code's value as to any. */
LANE vi near_groups(const float *x, vf scale, vi choice, const vi *words, const struct ternary_spec *s)
{
    vi near = i_set(0);
    for (int k = 0; k < s->unit / 8; k++) {
        vf least = least_value(choice, 8 * k >= s->unit / 2);
        vf value[3];
        for (int code = 0; code < 3; code++)
            value[code] = scale * ((float)code + least);
        vm all = m_not(m_none());
        for (int i = 0; i < 8; i++) {
            vf v = f_load(x + (8 * k + i) * LANES);
            vf code = f_from((words[k / 2] >> (16 * (k % 2) + 2 * i)) & 3);
            vf nearest = f_least(f_least(f_abs(value[0] - v), f_abs(value[1] - v)), f_abs(value[2] - v));
            all = m_and(all, f_le(f_abs(scale * (code + least) - v), nearest));
        }
        near |= i_pick(all, i_set(1 << k), i_set(0));
    }
    return near;
}

/* Step 1 for the units from `first` on. */
LANE void split_tile(struct ternary_fit *fit, const struct batch *b, int first, const struct ternary_spec *s)
{
    const float *x = b->x + first * s->unit;
    const int n = s->unit;
    struct ternary_tile t;
    vf most = f_abs(f_load(x));
    for (int i = 1; i < n; i++)
        most = f_most(most, f_abs(f_load(x + i * LANES)));
    vm alive = m_not(f_lt(most, f_set(s->negligible)));
    sort_tile(&t, x, b->w + first * n, n, alive);
    make_sums(&t, alive, s);
    if (s->halves)
        make_terms(&t, n);
    t.scale = most;
    t.floor = f_most(seed_score(&t, s), t.floor);
    if (try_splits(&t, NEAR_BEST, s) >= NEAR_ENOUGH)
        try_splits(&t, NEAR_ANY, s);
    vm empty = m_or(m_not(alive), i_lt(t.low, i_set(0)));
    vi words[2] = {i_set(0), i_set(0)};
    for (int i = 0; i < n; i++) {
        vi code = i_pick(i_lt(i_set(i), t.low), i_set(0), i_pick(i_lt(i_set(i), t.high), i_set(1), i_set(2)));
        words[0] |= i_up(code, 2 * t.order[i]);
        if (n > 16)
            words[1] |= i_up(code, 2 * t.order[i] - 32);
    }
    vm turned = f_lt(t.scale, f_set(0));
    vf scale = f_pick(turned, -t.scale, t.scale);
    vi choice = i_pick(turned, 3 - t.choice, t.choice);
    for (int h = 0; h < 2; h++) {
        words[h] = i_pick(turned, turned_codes(words[h]), words[h]);
        i_store(fit->words[h] + first, words[h]);
    }
    i_store(fit->choice + first, choice);
    f_store(fit->scale + first, scale);
    i_store(fit->empty + first, i_pick(empty, i_set(-1), i_set(0)));
    i_store(fit->certain + first, i_pick(t.certain, i_set(-1), i_set(0)));
    i_store(fit->near + first, i_pick(t.certain, near_groups(x, scale, choice, words, s), i_set(0)));
}
