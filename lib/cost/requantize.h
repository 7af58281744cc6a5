/* requantize.h - a tensor as it comes back from a type, row by row.  SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. */
#ifndef ALLOT_COST_REQUANTIZE_H
#define ALLOT_COST_REQUANTIZE_H

#include "net/net.h"

/* Rows of the tensor are quantized when they are asked for, so that no more of them than a block is in
 * memory. */
struct requantized {
    const struct gguf_model *model;
    const struct gguf_tensor *tensor;
    enum ggml_type type;  /* one that can hold all rows */
    const float *weights; /* importances (ne[2], ne[0]), or NULL */
};

/* The source of a network with this one tensor in the type; r must live as long. */
struct net_source requantized_source(struct requantized *r);

#endif
