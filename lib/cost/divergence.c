/* divergence.c - how far a loaded model is from what it was.  SPDX-License-Identifier: MIT */
#include "cost/divergence.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static allot_status fail_not_finite(const struct divergence *d, int64_t window, struct allot_error *err)
{
    return allot_fail(err, ALLOT_ERR_NUMERIC,
                      "%s: its output is not finite (NaN or infinite) in window %" PRId64,
                      d->decoder->model->path, window);
}

/* KL of one position, in double: sum p (l - l') - ln sum exp l + ln sum exp l', l from the maximum.
 * *ln_ratio: ln p(next) / p'(next) of a token. */
static double position_kl(double *ln_ratio, const float *base, const float *now, int64_t n, int32_t next)
{
    double max = base[0], max_now = now[0], sum = 0, sum_now = 0, shift = 0;
    for (int64_t i = 1; i < n; i++) {
        max = base[i] > max ? base[i] : max;
        max_now = now[i] > max_now ? now[i] : max_now;
    }
    for (int64_t i = 0; i < n; i++) {
        double l = base[i] - max, l_now = now[i] - max_now, p = exp(l);
        sum += p;
        sum_now += exp(l_now);
        if (p > 0)
            shift += p * (l - l_now);
    }
    *ln_ratio = (base[next] - max) - (now[next] - max_now) - log(sum) + log(sum_now);
    return shift / sum - log(sum) + log(sum_now);
}

static allot_status keep_logits(void *user, int64_t window, int32_t first, int32_t n, const float *logits,
                                struct allot_error *err)
{
    struct divergence *d = user;
    int64_t n_vocab = d->decoder->n_vocab, at = (window * d->decoder->windows->n_ctx + first) * n_vocab;
    double ratio;
    memcpy((float *)d->base.data + at, logits, sizeof *logits * (size_t)(n * n_vocab));
    for (int32_t i = 0; i < n; i++, logits += n_vocab)
        if (!isfinite(position_kl(&ratio, logits, logits, n_vocab, 0)))
            return fail_not_finite(d, window, err);
    return ALLOT_OK;
}

static allot_status compare_logits(void *user, int64_t window, int32_t first, int32_t n, const float *logits,
                                   struct allot_error *err)
{
    struct divergence *d = user;
    const struct decoder *decoder = d->decoder;
    const float *base =
        (const float *)d->base.data + (window * decoder->windows->n_ctx + first) * decoder->n_vocab;
    const int32_t n_ctx = decoder->windows->n_ctx, *ids = decoder->windows->ids + window * n_ctx;
    double sum = 0, ratios = 0, ratio;
    for (int32_t i = 0; i < n; i++) {
        const bool last = first + i + 1 == n_ctx;
        sum += position_kl(&ratio, base + i * decoder->n_vocab, logits + i * decoder->n_vocab,
                           decoder->n_vocab, last ? 0 : ids[first + i + 1]);
        ratios += last ? 0 : ratio;
    }
    sum /= n_ctx;
    ratios /= n_ctx - 1;
    d->kl[window] = first == 0 ? sum : d->kl[window] + sum;
    d->ln_ppl[window] = first == 0 ? ratios : d->ln_ppl[window] + ratios;
    return isfinite(sum) ? ALLOT_OK : fail_not_finite(d, window, err);
}

static allot_status report(void *user, int64_t first, int64_t n, struct allot_error *err)
{
    const struct divergence *d = user;
    int64_t n_windows = d->decoder->windows->n;
    return allot_report(d->progress, err, d->stage, d->done * n_windows + first + n, d->total * n_windows);
}

allot_status divergence_init(struct divergence *d, struct decoder *decoder,
                             const struct memory_budget *memory, struct allot_error *err)
{
    int64_t n_windows = decoder->windows->n, n = n_windows * decoder->windows->n_ctx * decoder->n_vocab;
    int64_t bytes = (int64_t)sizeof(float) * n;
    *d = (struct divergence){.decoder = decoder,
                             .kl = calloc((size_t)n_windows, sizeof *d->kl),
                             .ln_ppl = calloc((size_t)n_windows, sizeof *d->ln_ppl)};
    if (d->kl == NULL || d->ln_ppl == NULL) {
        divergence_release(d);
        return allot_fail_memory(err, (size_t)n_windows * sizeof *d->kl, "divergences");
    }
    const struct decode_pass pass = {.user = d, .logits = keep_logits};
    allot_status status = spill_new(&d->base, (size_t)bytes, decoder_folder(decoder, bytes, memory),
                                    "the logits of the sequences", err);
    if (status == ALLOT_OK)
        status = decoder_run(decoder, n_windows, &pass, err);
    if (status != ALLOT_OK)
        divergence_release(d);
    return status;
}

void divergence_release(struct divergence *d)
{
    spill_release(&d->base);
    free(d->kl);
    free(d->ln_ppl);
    *d = (struct divergence){0};
}

allot_status divergence_measure(struct divergence *d, struct allot_error *err)
{
    const struct decode_pass pass = {.user = d, .logits = compare_logits, .wave = report};
    return decoder_run(d->decoder, d->decoder->windows->n, &pass, err);
}
