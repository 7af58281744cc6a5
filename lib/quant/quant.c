/* quant.c - the table of ggml types.  SPDX-License-Identifier: MIT
 *
 * Which types are here: every one that llama-quantize can write by a rule and ggml_quantize_chunk knows. All
 * of them have a dot product and a row lookup in the CPU backend, so all can be matrices and token
 * embeddings. Q8_1 and Q8_K are absent (no ggml_quantize_chunk; they hold activations), so are the integer
 * types.
 *
 * Which are offered by default: those that can serve ordinary weights and run well in stock llama.cpp. Not
 * TQ1_0, TQ2_0, Q1_0 and Q2_0, made for weights trained to be ternary or binary (their scale is the largest
 * or mean magnitude, with no search); not NVFP4, whose E4M3 scales need a per-tensor scale that
 * llama-quantize does not write, so that small weights lose most of their precision; not BF16 and F32,
 * larger or slower than F16 for no measurable gain (a source type can always be kept by copying). */
#include "quant/quant.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "gguf/convert.h"
#include "quant/kernels.h"

/* What a type does with importances: ignores them; uses them; also refused without by llama-quantize; and
 * the process is aborted by ggml without. */
enum importance { IGNORES, USES, WANTS, ABORTS };

enum { FP16_INVALID = 0x7c00, BF16_INVALID = 0x7f80, E8M0_INVALID = 0x00ff };

/* Whether the search ends in a grid lookup that aborts the process when sums overflow. */
enum search { PLAIN, GRID };

#define TYPE(t, block_, bytes_, fallback_, imp, search_, group, ftype_, file_type_, default_, at0, at1, \
             mask)                                                                                      \
    {                                                                                                   \
        .type = GGML_TYPE_##t, .name = #t, .block = block_, .block_bytes = bytes_,                      \
        .fallback = GGML_TYPE_##fallback_, .uses_imatrix = (imp) != IGNORES,                            \
        .needs_imatrix = (imp) >= WANTS, .aborts_without = (imp) == ABORTS,                             \
        .searches_grid = (search_) == GRID, .zero_group = group, .ftype = ftype_,                       \
        .file_type = LLAMA_FTYPE_##file_type_, .default_candidate = default_, .scale_at = {at0, at1},   \
        .scale_mask = mask,                                                                             \
    }

/* The IQ2_S ftype's own type is IQ2_XS; the one that starts from the IQ2_S type is IQ2_M. IQ1_M has its
 * scale spread over four places and NVFP4 none that can be invalid: see quant_row_valid. F32 is looked at
 * through its upper half. */
static const struct quant_type type_table[] = {
    TYPE(Q1_0, 128, 18, F16, IGNORES, PLAIN, 0, "Q1_0", MOSTLY_Q1_0, false, 0, -1, FP16_INVALID),
    TYPE(IQ1_S, 256, 50, IQ4_NL, ABORTS, GRID, 32, "IQ1_S", MOSTLY_IQ1_S, true, 0, -1, FP16_INVALID),
    TYPE(TQ1_0, 256, 54, Q4_0, IGNORES, PLAIN, 0, "TQ1_0", MOSTLY_TQ1_0, false, 52, -1, FP16_INVALID),
    TYPE(IQ1_M, 256, 56, IQ4_NL, WANTS, GRID, 16, "IQ1_M", MOSTLY_IQ1_M, true, -1, -1, FP16_INVALID),
    TYPE(IQ2_XXS, 256, 66, IQ4_NL, ABORTS, GRID, 32, "IQ2_XXS", MOSTLY_IQ2_XXS, true, 0, -1, FP16_INVALID),
    TYPE(TQ2_0, 256, 66, Q4_0, IGNORES, PLAIN, 0, "TQ2_0", MOSTLY_TQ2_0, false, 64, -1, FP16_INVALID),
    TYPE(Q2_0, 64, 18, Q4_0, IGNORES, PLAIN, 0, "Q2_0", MOSTLY_Q2_0, false, 0, -1, FP16_INVALID),
    TYPE(IQ2_XS, 256, 74, IQ4_NL, ABORTS, GRID, 16, "IQ2_XS", MOSTLY_IQ2_XS, true, 0, -1, FP16_INVALID),
    TYPE(IQ2_S, 256, 82, IQ4_NL, WANTS, GRID, 16, "IQ2_M", MOSTLY_IQ2_M, true, 0, -1, FP16_INVALID),
    TYPE(Q2_K, 256, 84, Q4_0, USES, PLAIN, 256, "Q2_K", MOSTLY_Q2_K, true, 80, 82, FP16_INVALID),
    TYPE(IQ3_XXS, 256, 98, IQ4_NL, WANTS, GRID, 32, "IQ3_XXS", MOSTLY_IQ3_XXS, true, 0, -1, FP16_INVALID),
    TYPE(Q3_K, 256, 110, Q4_0, USES, PLAIN, 16, "Q3_K_M", MOSTLY_Q3_K_M, true, 108, -1, FP16_INVALID),
    TYPE(IQ3_S, 256, 110, IQ4_NL, USES, GRID, 0, "IQ3_S", MOSTLY_IQ3_S, true, 0, -1, FP16_INVALID),
    TYPE(IQ4_XS, 256, 136, IQ4_NL, USES, PLAIN, 32, "IQ4_XS", MOSTLY_IQ4_XS, true, 0, -1, FP16_INVALID),
    TYPE(MXFP4, 32, 17, F16, IGNORES, PLAIN, 0, "MXFP4_MOE", MOSTLY_MXFP4_MOE, true, 0, -1, E8M0_INVALID),
    TYPE(Q4_0, 32, 18, F16, USES, PLAIN, 32, "Q4_0", MOSTLY_Q4_0, true, 0, -1, FP16_INVALID),
    TYPE(IQ4_NL, 32, 18, F16, USES, PLAIN, 32, "IQ4_NL", MOSTLY_IQ4_NL, true, 0, -1, FP16_INVALID),
    TYPE(Q4_K, 256, 144, Q5_0, USES, PLAIN, 256, "Q4_K_M", MOSTLY_Q4_K_M, true, 0, 2, FP16_INVALID),
    TYPE(NVFP4, 64, 36, F16, IGNORES, PLAIN, 0, NULL, MOSTLY_NVFP4, false, -1, -1, 0),
    TYPE(Q4_1, 32, 20, F16, USES, PLAIN, 0, "Q4_1", MOSTLY_Q4_1, true, 0, 2, FP16_INVALID),
    TYPE(Q5_0, 32, 22, F16, USES, PLAIN, 32, "Q5_0", MOSTLY_Q5_0, true, 0, -1, FP16_INVALID),
    TYPE(Q5_K, 256, 176, Q5_1, USES, PLAIN, 256, "Q5_K_M", MOSTLY_Q5_K_M, true, 0, 2, FP16_INVALID),
    TYPE(Q5_1, 32, 24, F16, USES, PLAIN, 0, "Q5_1", MOSTLY_Q5_1, true, 0, 2, FP16_INVALID),
    TYPE(Q6_K, 256, 210, Q8_0, USES, PLAIN, 16, "Q6_K", MOSTLY_Q6_K, true, 208, -1, FP16_INVALID),
    TYPE(Q8_0, 32, 34, F16, IGNORES, PLAIN, 0, "Q8_0", MOSTLY_Q8_0, true, 0, -1, FP16_INVALID),
    TYPE(F16, 1, 2, F16, IGNORES, PLAIN, 0, NULL, MOSTLY_F16, true, 0, -1, FP16_INVALID),
    TYPE(BF16, 1, 2, F16, IGNORES, PLAIN, 0, NULL, MOSTLY_BF16, false, 0, -1, BF16_INVALID),
    TYPE(F32, 1, 4, F16, IGNORES, PLAIN, 0, NULL, ALL_F32, false, 2, -1, BF16_INVALID),
};

enum { N_TYPES = sizeof type_table / sizeof type_table[0] };

static char names_text[16 * N_TYPES];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

const struct quant_type *quant_types(size_t *n)
{
    *n = N_TYPES;
    return type_table;
}

const struct quant_type *quant_type_find(enum ggml_type type)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (type_table[i].type == type)
            return &type_table[i];
    return NULL;
}

const struct quant_type *quant_type_by_name(const char *name)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (strcasecmp(type_table[i].name, name) == 0)
            return &type_table[i];
    return NULL;
}

static void build_names(void)
{
    char *p = names_text;
    for (size_t i = 0; i < N_TYPES; i++) {
        if (i > 0)
            p = stpcpy(p, ", ");
        p = stpcpy(p, type_table[i].name);
    }
}

const char *quant_type_names(void)
{
    pthread_once(&names_once, build_names);
    return names_text;
}

bool quant_name_needs_imatrix(const char *tensor_name)
{
    static const char *const exempt[] = {"token_embd.weight", "per_layer_token_embd.weight", "output.weight"};
    for (size_t i = 0; i < sizeof exempt / sizeof exempt[0]; i++)
        if (strcmp(tensor_name, exempt[i]) == 0)
            return false;
    return true;
}

bool quant_type_needs_imatrix(enum ggml_type type, const char *tensor_name)
{
    const struct quant_type *qt = quant_type_find(type);
    return qt && (qt->aborts_without || (qt->needs_imatrix && quant_name_needs_imatrix(tensor_name)));
}

bool quant_type_fits(enum ggml_type type, int64_t n_per_row)
{
    const struct quant_type *qt = quant_type_find(type);
    return qt && n_per_row > 0 && n_per_row % qt->block == 0;
}

enum ggml_type quant_type_fallback(enum ggml_type type, int64_t n_per_row)
{
    if (quant_type_fits(type, n_per_row))
        return type;
    const struct quant_type *qt = quant_type_find(type);
    return qt && quant_type_fits(qt->fallback, n_per_row) ? qt->fallback : GGML_TYPE_F16;
}

allot_status quant_to_f32(enum ggml_type type, const void *src, float *dst, int64_t n,
                          struct allot_error *err)
{
    const struct ggml_type_traits *traits =
        type >= 0 && type < GGML_TYPE_COUNT ? ggml_get_type_traits(type) : NULL;
    if (!traits || traits->blck_size < 1)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "a type of number %d is unknown", (int)type);
    if (n % traits->blck_size != 0)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%lld weights are no multiple of the %lld of a %s block",
                          (long long)n, (long long)traits->blck_size, traits->type_name);
    if (!gguf_to_f32(type, src, dst, n))
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "type %s cannot be converted to F32",
                          traits->type_name);
    return ALLOT_OK;
}

allot_status quant_prepare(const enum ggml_type *types, size_t n_types, const struct allot_progress *progress,
                           struct allot_error *err)
{
    for (size_t i = 0; i < n_types; i++) {
        allot_status status = allot_report(progress, err, "search tables", (int64_t)i, (int64_t)n_types);
        if (status)
            return status;
        const struct quant_kernel_set *set;
        const bool fast = quant_kernel_find(types[i], true, &set) || quant_kernel_find(types[i], false, &set);
        if (!fast)
            ggml_quantize_init(types[i]);
    }
    return allot_report(progress, err, "search tables", (int64_t)n_types, (int64_t)n_types);
}

/* The FP16 scale of an IQ1_M block: the upper nibbles of the four 16-bit words at its end. */
static uint16_t iq1_m_scale(const uint8_t *block)
{
    uint16_t scale = 0;
    for (int i = 0; i < 4; i++)
        scale |= (uint16_t)((block[48 + 2 * i + 1] >> 4) << (4 * i));
    return scale;
}

bool quant_row_valid(enum ggml_type type, const void *row, size_t n_bytes)
{
    const struct quant_type *qt = quant_type_find(type);
    if (!qt || n_bytes % (size_t)qt->block_bytes != 0)
        return false;
    const uint8_t *block = row;
    const size_t n_blocks = n_bytes / (size_t)qt->block_bytes;
    const unsigned mask = qt->scale_mask;
    unsigned invalid = 0;

    if (type == GGML_TYPE_IQ1_M) {
        for (size_t i = 0; i < n_blocks; i++, block += qt->block_bytes)
            invalid |= (iq1_m_scale(block) & mask) == mask;
        return !invalid;
    }
    for (int f = 0; f < 2; f++) {
        if (qt->scale_at[f] < 0)
            continue;
        const uint8_t *field = block + qt->scale_at[f];
        for (size_t i = 0; i < n_blocks; i++, field += qt->block_bytes) {
            const unsigned value = mask > 0xff ? field[0] | (unsigned)field[1] << 8 : field[0];
            invalid |= (value & mask) == mask;
        }
    }
    return !invalid;
}
