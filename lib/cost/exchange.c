/* exchange.c - libllama's own tensors of a loaded model.  SPDX-License-Identifier: MIT */
#include "cost/exchange.h"

#include <stdlib.h>

#include "base/error.h"

struct search {
    const struct gguf_model *model;
    struct exchange_slot *slots;
};

/* A view of a tensor is no use of it; what then happens to the view is. */
static bool is_view(enum ggml_op op)
{
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

/* Products and lookups take weights of every type, as their first operand. */
static bool takes_quantized(enum ggml_op op, int operand)
{
    return operand == 0 && (op == GGML_OP_MUL_MAT || op == GGML_OP_MUL_MAT_ID || op == GGML_OP_GET_ROWS);
}

static bool find_operands(struct ggml_tensor *node, bool ask, void *user)
{
    const struct search *search = user;
    for (int i = 0; ask && i < GGML_MAX_SRC && !is_view(node->op); i++) {
        struct ggml_tensor *operand = node->src[i];
        if (operand == NULL)
            continue;
        if (operand->view_src != NULL)
            operand = operand->view_src;
        const struct gguf_tensor *t = gguf_model_tensor(search->model, operand->name);
        if (t == NULL || !gguf_tensor_quantizable(t) || operand->type != t->type ||
            !ggml_is_contiguous(operand) || ggml_nelements(operand) != t->n_elements)
            continue;
        struct exchange_slot *slot = &search->slots[t - search->model->tensors];
        if (slot->tensor != NULL && slot->tensor != operand)
            slot->misuse = GGML_OP_CPY; /* libllama made a second tensor of it: one role only would change */
        slot->tensor = operand;
        if (!takes_quantized(node->op, i))
            slot->misuse = node->op;
    }
    return !ask;
}

allot_status exchange_find(struct exchange_slot *slots, struct decoder *decoder, struct allot_error *err)
{
    struct search search = {decoder->model, slots};
    struct engine_observer observer = {find_operands, &search};
    const struct decode_pass pass = {.observers = &observer};
    return decoder_run(decoder, 1, &pass, err);
}

void exchange_put(struct ggml_tensor *tensor, enum ggml_type type, void *data, struct ggml_tensor *old)
{
    *old = *tensor;
    tensor->type = type;
    tensor->data = data;
    tensor->nb[0] = ggml_type_size(type);
    tensor->nb[1] = ggml_row_size(type, tensor->ne[0]);
    tensor->nb[2] = tensor->nb[1] * (size_t)tensor->ne[1];
    tensor->nb[3] = tensor->nb[2] * (size_t)tensor->ne[2];
}

void exchange_restore(struct ggml_tensor *tensor, const struct ggml_tensor *old)
{
    *tensor = *old;
}
