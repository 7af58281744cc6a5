/* scalar.h - blocks whose every weight is one level of a common grid, scaled: taken apart and put together.
 * SPDX-License-Identifier: MIT
 *
 * A weight of such a type is a * level(code) + b, in float32 as ggml computes it, with
 *   a = d * scale, b = -(min * least)
 * where d and min are the block's and the integers scale and least those of a group of weights. Types without
 * them have scale 1, and min and least 0. All products of d or min with integers are exact in float32. */
#ifndef ALLOT_QUANT_SCALAR_H
#define ALLOT_QUANT_SCALAR_H

#include "quant/quant.h"

enum { SCALAR_BLOCK = 256, SCALAR_GROUPS = 16, SCALAR_LEVELS = 16 };

/* How d and min are stored. */
enum scalar_factor { FACTOR_FP16, FACTOR_E8M0 };

struct scalar_type {
    enum ggml_type type;
    int block, block_bytes, group; /* weights in a block, its bytes, weights in a group */
    int lowest, first, last;       /* level of code 0 and the levels that may be chosen; of a table: ranks */
    bool table;                    /* levels are scalar_levels' */
    int least_scale, most_scale;   /* the integers that a scale can be; both 1: there are none */
    int most_least;                /* leasts are 0 to this; 0: there are none; 1: they are 1 */
    enum scalar_factor factor;
};

/* The levels of a table, rising, and a code of each. */
struct scalar_levels {
    int n;
    float level[SCALAR_LEVELS];
    uint8_t code[SCALAR_LEVELS];
};

struct scalar_block {
    float d, min;
    int8_t scales[SCALAR_GROUPS];
    uint8_t leasts[SCALAR_GROUPS];
    uint8_t codes[SCALAR_BLOCK];
};

/* NULL if the type has no scalar grid. */
const struct scalar_type *scalar_type_find(enum ggml_type type);

/* Of a type with a table; read from the linked ggml once. Thread-safe. */
const struct scalar_levels *scalar_levels_of(const struct scalar_type *type);

/* The block's fields; fields the type lacks are filled as said above. */
void scalar_load(const struct scalar_type *type, struct scalar_block *b, const uint8_t *block);

/* The reverse: all bytes of the block, equal to those loaded if nothing was changed and d and min are finite.
 * d and min must be values of their format, integers in their ranges. */
void scalar_store(const struct scalar_type *type, const struct scalar_block *b, uint8_t *block);

#endif
