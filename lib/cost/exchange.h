/* exchange.h - libllama's own tensors of a loaded model, and other data in their place.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. libllama does not hand out its tensors, but the nodes of its graphs point to them. A
 * tensor with another type and other data is what the model would have been with that tensor quantized so:
 * contexts made afterwards compute with that type's kernels. */
#ifndef ALLOT_COST_EXCHANGE_H
#define ALLOT_COST_EXCHANGE_H

#include "cost/decode.h"

struct exchange_slot {
    struct ggml_tensor *tensor; /* NULL: no node of the graph uses it */
    enum ggml_op misuse;        /* what a node does with it that quantized types cannot do; or GGML_OP_NONE */
};

/* Finds the quantizable tensors of the decoder's model by a pass over one window. slots: [n_tensors]. */
allot_status exchange_find(struct exchange_slot *slots, struct decoder *decoder, struct allot_error *err);

/* Puts data (rows as ggml lays them out, the caller's) in place; `old` brings back what was there. Not while
 * a pass runs. */
void exchange_put(struct ggml_tensor *tensor, enum ggml_type type, void *data, struct ggml_tensor *old);
void exchange_restore(struct ggml_tensor *tensor, const struct ggml_tensor *old);

#endif
