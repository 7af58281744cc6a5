/* search_iq4.h - the scale of a unit whose codes stand for uneven values: IQ4_NL, IQ4_XS.
 * SPDX-License-Identifier: MIT */

/* The values of the codes, and the middles between neighbours as a tree that a search walks down: a level
 * has twice the middles of the one above. From its middle on the upper neighbour is the nearest, as ggml
 * decides it. */
static const float iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float iq4_middle = -4.5f;
static const float iq4_middles_2[2] = {-57, 45.5f};
static const float iq4_middles_4[8] = {-93.5f, -28.5f, 19, 79};
static const float iq4_middles_8[8] = {-115.5f, -74, -42, -16, 7, 31.5f, 61, 101};

/* The code of the nearest value; 15 for a NaN. */
LANE vi iq4_code(vf t)
{
    vm below = f_lt(t, f_set(iq4_middle));
    vi c = i_add_one(i_set(0), m_not(below));
    below = f_lt(t, f_pick(below, f_set(iq4_middles_2[0]), f_set(iq4_middles_2[1])));
    c = i_add_one(c + c, m_not(below));
    below = f_lt(t, f_at8(iq4_middles_4, c));
    c = i_add_one(c + c, m_not(below));
    below = f_lt(t, f_at8(iq4_middles_8, c));
    return i_add_one(c + c, m_not(below));
}

LANE vf iq4_value(vf t)
{
    return f_at16(iq4_values, iq4_code(t));
}

enum { IQ4_REACH = 7, IQ4_STEPS = 2 * IQ4_REACH + 1, IQ4_UNIT = 32 };

struct iq4_choices {
    _Alignas(64) float middle[IQ4_UNIT * LANES];
    float low_qx[IQ4_UNIT * LANES], high_qx[IQ4_UNIT * LANES];
    float low_q2[IQ4_UNIT * LANES], high_q2[IQ4_UNIT * LANES];
};

/* The choices between two factors, and the sums of a factor apart. */
LANE void iq4_choose(struct iq4_choices *c, vf sums[2], const float *x, const float *w, vf far, vf near, vf apart)
{
    sums[0] = sums[1] = f_set(0);
    for (int i = 0; i < IQ4_UNIT * LANES; i += LANES) {
        vf v = f_load(x + i), p = f_load(w + i);
        vf a = iq4_value(far * v), b = iq4_value(near * v), q = iq4_value(apart * v);
        vf low = f_least(a, b), high = f_most(a, b), low_p = p * low, high_p = p * high;
        f_store(c->middle + i, (low + high) * 0.5f);
        f_store(c->low_qx + i, low_p * v);
        f_store(c->high_qx + i, high_p * v);
        f_store(c->low_q2 + i, low_p * low);
        f_store(c->high_q2 + i, high_p * high);
        sums[0] += p * q * v;
        sums[1] += p * q * q;
    }
}

LANE void iq4_sums(vf sums[][2], const struct iq4_choices *c, const float *x, const vf *code_scale, int n)
{
    for (int k = 0; k < n; k++)
        sums[k][0] = sums[k][1] = f_set(0);
    for (int i = 0; i < IQ4_UNIT * LANES; i += LANES) {
        vf v = f_load(x + i);
        for (int k = 0; k < n; k++) {
            vm low = f_lt(code_scale[k] * v, f_load(c->middle + i));
            sums[k][0] += f_pick(low, f_load(c->low_qx + i), f_load(c->high_qx + i));
            sums[k][1] += f_pick(low, f_load(c->low_q2 + i), f_load(c->high_q2 + i));
        }
    }
}

LANE vf iq4_tile(const float *x, const float *w)
{
    struct iq4_choices c;
    vf most = tile_most(x, IQ4_UNIT), code_scale[IQ4_STEPS], sums[IQ4_STEPS][2], first[2];
    for (int step = 0; step < IQ4_STEPS; step++)
        code_scale[step] = ((float)(step - IQ4_REACH) + iq4_values[0]) / most;
    iq4_choose(&c, first, x, w, code_scale[0], code_scale[IQ4_STEPS - 1], 1 / (-most / iq4_values[0]));
    for (int step = 0; step < IQ4_STEPS; step += IQ4_N)
        iq4_sums(sums + step, &c, x, code_scale + step, IQ4_N);
    vf scale = f_pick(f_lt(f_set(0), first[1]), first[0] / first[1], f_set(0)), best = scale * first[0];
    for (int step = 0; step < IQ4_STEPS; step++) {
        vf qx = sums[step][0], q2 = sums[step][1];
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

/* The nibbles of a unit. */
LANE void store_iq4_unit(uint8_t *p, const float *x, float code_scale)
{
    uint8_t codes[IQ4_UNIT];
    for (int i = 0; i < IQ4_UNIT; i += LANES)
        store_bytes(codes + i, iq4_code(code_scale * f_load(x + i)));
    store_nibbles(p, codes);
}

static void encode_iq4_nl(const struct batch *b, uint8_t *out)
{
    float scales[MAX_UNITS];
    iq4_search(scales, b);
    for (int u = 0; u < b->n_units; u++, out += 18) {
        store_fp16(out, scales[u]);
        store_iq4_unit(out + 2, b->src + u * IQ4_UNIT, scales[u] ? 1 / scales[u] : 0);
    }
}

static void encode_iq4_xs(const struct batch *b, uint8_t *out)
{
    float scales[MAX_UNITS];
    iq4_search(scales, b);
    for (int s = 0; s < b->n_units / 8; s++, out += 136) {
        float factor = -largest_scale(scales + 8 * s, 8) / 32, code_scale = factor ? 1 / factor : 0;
        uint16_t high = 0;
        store_fp16(out, factor);
        memset(out + 4, 0, 4);
        for (int j = 0; j < 8; j++) {
            int32_t code = nearest_one(code_scale * scales[8 * s + j]);
            code = code < -32 ? -32 : code > 31 ? 31 : code;
            float scale = factor * (float)code;
            store_iq4_unit(out + 8 + 16 * j, b->src + (8 * s + j) * IQ4_UNIT, scale ? 1 / scale : 0);
            out[4 + j / 2] |= (uint8_t)(((code + 32) & 15) << 4 * (j % 2));
            high |= (uint16_t)((code + 32) >> 4 << 2 * j);
        }
        memcpy(out + 2, &high, sizeof high);
    }
}
