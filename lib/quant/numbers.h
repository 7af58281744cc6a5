/* numbers.h - rounding to integers and codes, as ggml does it.  SPDX-License-Identifier: MIT
 *
 * Part of a set of kernels (kernels.h): included after a vocabulary of lanes. */

/* Adding it leaves the nearest integer in the low bits of a float's fraction. */
#define ROUNDING 12582912.0f
/* Values up to this are rounded to the nearest integer by it; beyond, ggml takes what the bits say. */
#define ROUNDING_MOST 4194303.0f

LANE vf f_from(vi a)
{
    return __builtin_convertvector(a, vf);
}

/* Of a float that is a small integer. */
LANE vi i_from(vf a)
{
    return __builtin_convertvector(a, vi);
}

/* ggml's nearest integer, for any value: what the bits say, even where that is not the nearest. */
LANE vi nearest(vf x)
{
    return (((vi)(x + ROUNDING)) & 0x007fffff) - 0x00400000;
}

LANE vi clamped(vi a, int32_t lowest, int32_t highest)
{
    return i_most(i_set(lowest), i_least(i_set(highest), a));
}

/* The same as a float, where |x| <= ROUNDING_MOST. */
LANE vf nearest_small(vf x, float lowest, float highest)
{
    return f_most(f_least((x + ROUNDING) - ROUNDING, f_set(highest)), f_set(lowest));
}

/* Lane by lane whether nearest_small may serve for all values between a and b. */
LANE vm is_small(vf a, vf b)
{
    return m_and(f_le(f_abs(a), f_set(ROUNDING_MOST)), f_le(f_abs(b), f_set(ROUNDING_MOST)));
}
