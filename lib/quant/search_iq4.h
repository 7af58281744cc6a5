/* search_iq4.h - the scale of a unit whose codes stand for uneven values: IQ4_NL, IQ4_XS.
 * SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h). A weight is value * scale, the value one of sixteen. Tried are the
 * scales that put the weight with the largest magnitude at 127, then at -127 + step for steps from -7 to 7:
 * the values nearest to the weights are fitted by weighted least squares, and the fit that explains most is
 * kept. */

enum { IQ4_UNIT = 32, IQ4_REACH = 7, IQ4_STEPS = 2 * IQ4_REACH + 1, IQ4_TOGETHER = 5 };

/* ---- The nearest of the values ---------------------------------------------------------------------- */

/* The values, and the middles between neighbours as a search finds them that halves: the eighth, then one of
 * the fourth and the twelfth, and so on. ggml takes the upper neighbour from the middle on. */
_Alignas(64) static const
    float iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float iq4_middle = -4.5f, iq4_middles_2[2] = {-57, 45.5f};
_Alignas(64) static const float iq4_middles_4[16] = {-93.5f, -28.5f, 19, 79, -93.5f, -28.5f, 19, 79,
                                                     -93.5f, -28.5f, 19, 79, -93.5f, -28.5f, 19, 79};
_Alignas(64) static const float iq4_middles_8[16] = {-115.5f, -74, -42, -16, 7, 31.5f, 61, 101,
                                                     -115.5f, -74, -42, -16, 7, 31.5f, 61, 101};

/* The code of the nearest value; the last for a NaN, as ggml has it. */
LANE vi iq4_code(vf t)
{
    vm below = f_lt(t, f_set(iq4_middle));
    vi code = i_count(i_set(0), m_not(below));
    below = f_lt(t, f_pick(below, f_set(iq4_middles_2[0]), f_set(iq4_middles_2[1])));
    code = i_count(code + code, m_not(below));
    below = f_lt(t, f_of_eight((const vf *)iq4_middles_4, code));
    code = i_count(code + code, m_not(below));
    below = f_lt(t, f_of_eight((const vf *)iq4_middles_8, code));
    return i_count(code + code, m_not(below));
}

LANE vf iq4_value(vf t)
{
    return f_of_sixteen((const vf *)iq4_values, iq4_code(t));
}

/* ---- The search ------------------------------------------------------------------------------------- */

/* From the first step to the last a weight's place shrinks from 134 to 120 parts, and of two middles on the
 * same side of zero the outer one is larger by a fifth at least: a weight meets one middle or none, so that
 * it has one of two values in all steps. What either adds to the sums of a fit. */
struct iq4_choices {
    _Alignas(64) float middle[IQ4_UNIT * LANES];
    _Alignas(64) float low_qx[IQ4_UNIT * LANES], high_qx[IQ4_UNIT * LANES];
    _Alignas(64) float low_q2[IQ4_UNIT * LANES], high_q2[IQ4_UNIT * LANES];
};

LANE void iq4_choose(struct iq4_choices *c, const float *x, const float *w, vf first_scale, vf last_scale)
{
    for (int i = 0; i < IQ4_UNIT * LANES; i += LANES) {
        vf v = f_load(x + i), weight = f_load(w + i);
        vf a = iq4_value(first_scale * v), b = iq4_value(last_scale * v);
        vf low = f_least(a, b), high = f_most(a, b);
        f_store(c->middle + i, (low + high) * 0.5f);
        f_store(c->low_qx + i, weight * low * v);
        f_store(c->high_qx + i, weight * high * v);
        f_store(c->low_q2 + i, weight * low * low);
        f_store(c->high_q2 + i, weight * high * high);
    }
}

/* The sums of n steps' fits. */
LANE void iq4_sums(vf sums[][2], const struct iq4_choices *c, const float *x, const vf *code_scale, int n)
{
    for (int k = 0; k < n; k++)
        sums[k][0] = sums[k][1] = f_set(0);
    for (int i = 0; i < IQ4_UNIT * LANES; i += LANES)
        for (int k = 0; k < n; k++) {
            vm low = f_lt(code_scale[k] * f_load(x + i), f_load(c->middle + i));
            sums[k][0] += f_pick(low, f_load(c->low_qx + i), f_load(c->high_qx + i));
            sums[k][1] += f_pick(low, f_load(c->low_q2 + i), f_load(c->high_q2 + i));
        }
}

/* The sums of any fit. */
LANE void iq4_sums_apart(vf sums[2], const float *x, const float *w, vf code_scale)
{
    sums[0] = sums[1] = f_set(0);
    for (int i = 0; i < IQ4_UNIT * LANES; i += LANES) {
        vf v = f_load(x + i), q = iq4_value(code_scale * v), wq = f_load(w + i) * q;
        sums[0] += wq * v;
        sums[1] += wq * q;
    }
}

/* The scales of a tile's units. */
LANE vf iq4_tile(const float *x, const float *w)
{
    struct iq4_choices choices;
    vf most = tile_most(x, IQ4_UNIT), code_scale[IQ4_STEPS], sums[IQ4_STEPS][2], start[2];
    for (int step = -IQ4_REACH; step <= IQ4_REACH; step++)
        code_scale[step + IQ4_REACH] = ((float)step + iq4_values[0]) / most;
    iq4_sums_apart(start, x, w, 1 / (-most / iq4_values[0]));
    iq4_choose(&choices, x, w, code_scale[0], code_scale[IQ4_STEPS - 1]);
    for (int at = 0; at < IQ4_STEPS; at += IQ4_TOGETHER)
        iq4_sums(sums + at, &choices, x, code_scale + at, IQ4_TOGETHER);
    vf scale = f_pick(f_lt(f_set(0), start[1]), start[0] / start[1], f_set(0)), best = scale * start[0];
    for (int at = 0; at < IQ4_STEPS; at++) {
        vf qx = sums[at][0], q2 = sums[at][1];
        vm won = m_and(f_lt(f_set(0), q2), f_lt(best * q2, qx * qx));
        scale = f_pick(won, qx / q2, scale);
        best = f_pick(won, scale * qx, best);
    }
    return f_pick(f_lt(f_abs(most), f_set(ALL_ZERO)), f_set(0), scale);
}

LANE void iq4_search(float *scales, const struct batch *b)
{
    for (int u = 0; u < b->n_units; u += LANES)
        f_store(scales + u, iq4_tile(b->x + u * IQ4_UNIT, b->w + u * IQ4_UNIT));
}

/* ---- Blocks ----------------------------------------------------------------------------------------- */

/* The codes of a unit's weights under a scale, in their order. */
LANE void iq4_codes(uint8_t *codes, const float *x, float scale)
{
    const float code_scale = scale ? 1 / scale : 0;
    for (int i = 0; i < IQ4_UNIT; i += LANES)
        store_bytes(codes + i, iq4_code(code_scale * f_load(x + i)));
}

static void encode_iq4_nl(const struct batch *b, uint8_t *out)
{
    float scales[MAX_UNITS];
    uint8_t codes[BATCH];
    iq4_search(scales, b);
    for (int u = 0; u < b->n_units; u++)
        iq4_codes(codes + u * IQ4_UNIT, b->src + u * IQ4_UNIT, scales[u]);
    for (int u = 0; u < b->n_units; u++, out += 18) {
        store_fp16(out, scales[u]);
        store_nibbles(out + 2, codes + u * IQ4_UNIT, 16);
    }
}

/* A super-block's eight scales are integers from -32 to 31 times a factor, which is not rounded for the
 * codes. */
static void encode_iq4_xs(const struct batch *b, uint8_t *out)
{
    float scales[MAX_UNITS];
    iq4_search(scales, b);
    for (int s = 0; s < b->n_units / 8; s++, out += 136) {
        float factor = -largest_scale(scales + 8 * s, 8) / 32, per_factor = factor ? 1 / factor : 0;
        uint8_t codes[SUPER_BLOCK];
        uint16_t high = 0;
        store_fp16(out, factor);
        memset(out + 4, 0, 4);
        for (int j = 0; j < 8; j++) {
            int32_t l = clamped_one(nearest_one(per_factor * scales[8 * s + j]), -32, 31);
            iq4_codes(codes + j * IQ4_UNIT, b->src + (8 * s + j) * IQ4_UNIT, factor * (float)l);
            out[4 + j / 2] |= (uint8_t)(((l + 32) & 15) << 4 * (j % 2));
            high |= (uint16_t)((l + 32) >> 4 << 2 * j);
        }
        memcpy(out + 2, &high, sizeof high);
        for (int j = 0; j < 8; j++)
            store_nibbles(out + 8 + 16 * j, codes + j * IQ4_UNIT, 16);
    }
}
