/* fuzz_quant.c - any weights and importances: the fast quantizers give ggml's bytes, whatever the set of
 * instructions. SPDX-License-Identifier: MIT
 *
 * Input: kernel (its row in the table), two bytes from which the shape follows, form (bits 0-1: floats, small
 * integers, powers, few values; bit 2: with importances; bits 3-4: their form), then bytes that are repeated,
 * changed a little each time, until all values are there. */
#include "../unit/quant/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER = 4, MOST_VALUES = 4096 };

static uint32_t word_at(const uint8_t *data, size_t size, uint64_t i)
{
    uint32_t word = 0;
    for (int k = 0; k < 4; k++)
        word |= (uint32_t)(data[(4 * i + (uint64_t)k) % size] + 4 * i / size) << 8 * k;
    return word;
}

static float value_of(uint32_t word, int form)
{
    float x;
    memcpy(&x, &word, sizeof x);
    if (form == 1)
        x = (float)(int8_t)word * 0.01f;
    else if (form == 2)
        x = copysignf(ldexpf(1 + (float)(word >> 8 & 0xff) / 256, (int)(word % 96) - 48),
                      (int32_t)word < 0 ? -1 : 1);
    else if (form == 3)
        x = (float)(word % 5) - 2;
    return isfinite(x) && fabsf(x) < QUANT_KERNEL_MOST ? x : 0;
}

static const struct quant_type *type_of(uint8_t byte)
{
    const struct quant_kernel_set *set = quant_kernel_sets()[0];
    return set ? quant_type_find(set->kernels[byte % set->n].type) : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sample s;
    const struct quant_type *type = size > HEADER ? type_of(data[0]) : NULL;
    if (!type)
        return 0;
    const bool importances = data[3] & 4;
    const struct quant_kernel *kernel = kernel_of(quant_kernel_sets()[0], type->type);
    if (!kernel_takes(kernel, importances))
        return 0;
    if (!sample_new(&s, type, ZEROS, importances ? UNIFORM : NONE, data[1] + 256u * data[2], NULL, 0,
                    MOST_VALUES))
        return 0;
    float *x = (float *)s.x.data, *q = (float *)s.q.data;
    const int64_t n = s.n_rows * s.n_per_row;
    double most_q = 1;
    for (int64_t i = 0; i < n; i++)
        x[i] = value_of(word_at(data + HEADER, size - HEADER, (uint64_t)i), data[3] & 3);
    for (int64_t i = 0; importances && i < s.n_per_row; i++) {
        q[i] = fabsf(value_of(word_at(data + HEADER, size - HEADER, (uint64_t)(n + i)), data[3] >> 3 & 3));
        most_q = q[i] > most_q ? q[i] : most_q;
    }
    if (type->searches_grid)
        keep_below(&s, importances ? cbrt(1e32 / most_q) : 1e8);
    ggml_quantize_chunk(type->type, x, s.theirs.data, 0, s.n_rows, s.n_per_row, importances ? q : NULL);
    for (const struct quant_kernel_set *const *set = quant_kernel_sets(); *set; set++) {
        const int64_t at = first_difference(&s, *set, kernel_of(*set, type->type));
        if (at < 0)
            continue;
        fprintf(stderr, "fuzz_quant: %s %s: byte %lld of %zu differs\n", (*set)->name, type->name,
                (long long)at, s.ours.n);
        abort();
    }
    sample_free(&s);
    return 0;
}
