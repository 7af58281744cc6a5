/* round_plain.h - scales from the extremes of a unit: Q4_0, Q4_1, Q5_0, Q5_1 without importances, Q8_0.
 * SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). Nothing is searched for; a unit is read in the order of its weights.
 * Where a scale is so small that its inverse is infinite, codes are what a byte makes of the integers that
 * the processor gives for infinities and NaNs: 0. */

enum { PLAIN_UNIT = 32 };

/* Of the weights (or their magnitudes) that equal a the first. */
LANE float first_equal(const float *x, float a, bool magnitude)
{
    uint32_t equal = 0;
    for (int i = 0; i < PLAIN_UNIT; i += LANES) {
        vf v = magnitude ? f_abs(f_load(x + i)) : f_load(x + i);
        equal |= (uint32_t)m_bits(m_not(f_ne(v, f_set(a)))) << i;
    }
    return x[__builtin_ctz(equal)];
}

/* The least weight, the largest or the one with the largest magnitude; of equals the first. */
LANE float plain_least(const float *x)
{
    vf least = f_load(x);
    for (int i = LANES; i < PLAIN_UNIT; i += LANES)
        least = f_least(least, f_load(x + i));
    return first_equal(x, f_least_of_all(least)[0], false);
}

LANE float plain_most(const float *x, bool magnitude)
{
    vf least = f_set(0);
    for (int i = 0; i < PLAIN_UNIT; i += LANES) {
        vf v = f_load(x + i);
        least = i == 0 ? -(magnitude ? f_abs(v) : v) : f_least(least, -(magnitude ? f_abs(v) : v));
    }
    return first_equal(x, -f_least_of_all(least)[0], magnitude) + 0.0f; /* not -0 */
}

/* Codes from 0 to `top`; the least weight becomes 0, or (symmetric) the one with the largest magnitude. */
LANE void encode_plain(const struct batch *b, uint8_t *out, int top, bool symmetric)
{
    const float half = (float)((top + 1) / 2), offset = symmetric ? half + 0.5f : 0.5f;
    float scale[MAX_UNITS], base[MAX_UNITS];
    uint8_t codes[BATCH];
    for (int u = 0; u < b->n_units; u++) {
        const float *x = b->src + u * PLAIN_UNIT;
        base[u] = symmetric ? 0 : plain_least(x);
        scale[u] = symmetric ? plain_most(x, true) / -half : (plain_most(x, false) - base[u]) / (float)top;
        const float per_scale = scale[u] ? 1 / scale[u] : 0;
        for (int i = 0; i < PLAIN_UNIT; i += LANES) {
            vi code = i_from((f_load(x + i) - base[u]) * per_scale + offset) & 255;
            store_bytes(codes + u * PLAIN_UNIT + i, i_least(i_set(top), code));
        }
    }
    for (int u = 0; u < b->n_units; u++) {
        store_fp16(out, scale[u]);
        if (!symmetric)
            store_fp16(out + 2, base[u]);
        out += symmetric ? 2 : 4;
        if (top == 15)
            store_nibbles(out, codes + u * PLAIN_UNIT, 16);
        else
            store_five_bits(out, codes + u * PLAIN_UNIT);
        out += top == 15 ? 16 : 20;
    }
}

/* The nearest integers, halves away from zero. */
LANE vi rounded_away(vf x)
{
    vi whole = i_from(x);
    vf rest = x - f_from(whole);
    vm up = m_and(f_le(f_set(0.5f), rest), f_lt(rest, f_set(1)));
    vm down = m_and(f_le(rest, f_set(-0.5f)), f_lt(f_set(-1), rest));
    return whole + i_pick(up, i_set(1), i_pick(down, i_set(-1), i_set(0)));
}

static void encode_q8_0(const struct batch *b, uint8_t *out)
{
    for (int u = 0; u < b->n_units; u++, out += 34) {
        const float *x = b->src + u * PLAIN_UNIT;
        float scale = fabsf(plain_most(x, true)) / 127, per_scale = scale ? 1 / scale : 0;
        store_fp16(out, scale);
        for (int i = 0; i < PLAIN_UNIT; i += LANES)
            store_bytes(out + 2 + i, rounded_away(f_load(x + i) * per_scale));
    }
}
