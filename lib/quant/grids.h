/* grids.h - the grids that the IQ1, IQ2 and IQ3 types choose groups of weights from.
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/quant only. A group of 8 (IQ3: 4) weights is coded together: its magnitudes, in units of the
 * scale, become a point of the type's grid. A coordinate is named by its code, 0 to 2 (IQ3: 0 to 7), the rank
 * of its value; a *code word* holds those of a group, coordinate i in the 2 (IQ3: 3) bits from 2 i (3 i).
 * When the codes of the single weights make a word that is no point, ggml searches the word's *neighbours*:
 * the points at its nearest one, two or three distances, in the order of distance and then of index.
 *
 * No grid is part of our source: the points are what the linked ggml reads blocks back as, the neighbours
 * follow from them. */
#ifndef ALLOT_QUANT_GRIDS_H
#define ALLOT_QUANT_GRIDS_H

#include <stdbool.h>
#include <stdint.h>

#include "ggml.h"

enum {
    GRID_SHORT = 1 << 16, /* code words are less */
    GRID_VECTOR = 16,     /* lists of neighbours take so many words or a multiple */
    GRID_STEP = 8         /* and are counted in so many */
};

struct quant_grid {
    int n_points;
    int size;               /* coordinates */
    int bits;               /* of a code */
    int values;             /* codes are less */
    const uint16_t *points; /* the code word of each */
    /* Of each code word whose coordinates are less than `values`: the index of the point, or ~entry of its
     * list (grid_list, grid_steps). Of word + GRID_SHORT the same with shorter lists, but for the grid of
     * IQ2_S: without the neighbours that are never nearest to a group of weights each of which is
     * nearest to its code. */
    const int32_t *map;
    const uint16_t *words; /* neighbours, as code words */
};

/* The neighbours of an entry of the map that is negative. */
static inline const uint16_t *grid_list(const struct quant_grid *g, int32_t entry)
{
    return g->words + (size_t)(~entry >> 8) * GRID_VECTOR;
}

/* So many words, times GRID_STEP: the last neighbour is repeated up to a multiple of GRID_VECTOR. */
static inline int grid_steps(int32_t entry)
{
    return ~entry & 255;
}

/* The grid of a type (IQ1_M has that of IQ1_S), made when it is first asked for and kept. NULL if the type
 * has none, if memory lacks, or if ggml's is not of the form described above. Thread-safe. */
const struct quant_grid *quant_grid_of(enum ggml_type type);

#endif
