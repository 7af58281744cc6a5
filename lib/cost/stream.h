/* stream.h - how much of the residual stream each tensor has a part in, from weights and imatrix alone.
 *
 * SPDX-License-Identifier: MIT
 *
 * Inside lib/cost only. The stream begins with the token's embedding; each layer's attention (or what stands
 * in its place) adds its output c to it, then its feed-forward part. With contributions taken as
 * uncorrelated, the stream that the next part reads has the energy of all so far, and
 *
 *     share(part) = E |c|^2 / (sum of E |c|^2 of this part and all before it)
 *
 * A relative error e of one of the part's maps is taken as the same relative error of c, so that the stream's
 * noise-to-signal ratio where c joins it is e times the share. That of the embedding and of the output's map
 * is 1, and so is that of a tensor whose part is not known.
 *
 * E |c|^2 is the expected square of the part's last map (attn_output, ffn_down and their like, found by
 * name); after a norm it is the sum of the squares of the norm's weights. k experts of a token are taken to
 * count 1/k each. Rows of the embedding count alike. */
#ifndef ALLOT_COST_STREAM_H
#define ALLOT_COST_STREAM_H

#include "cost/imatrix.h"

/* Fills shares[model->n_tensors]. im may be NULL. Of large matrices a sample of rows is read. */
allot_status stream_shares(double *shares, const struct gguf_model *model, const struct imatrix *im,
                           struct allot_error *err);

#endif
