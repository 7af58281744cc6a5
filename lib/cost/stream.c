/* stream.c - how much of the residual stream each tensor has a part in.  SPDX-License-Identifier: MIT */
#include "cost/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/moments.h"
#include "gguf/convert.h"

enum part { MIXER, FEED_FORWARD, N_PARTS }; /* of a layer, in the order of the stream */

/* The last map of a part; a layer may have several, which add up. */
static const struct writer {
    const char *suffix;
    enum part part;
} writers[] = {
    {"attn_output.weight", MIXER},
    {"ssm_out.weight", MIXER},
    {"shortconv.out_proj.weight", MIXER},
    {"time_mix_output.weight", MIXER},
    {"ffn_down.weight", FEED_FORWARD},
    {"ffn_down_exps.weight", FEED_FORWARD},
    {"ffn_down_shexp.weight", FEED_FORWARD},
    {"ffn_down_chexps.weight", FEED_FORWARD},
    {"channel_mix_value.weight", FEED_FORWARD},
};

static const char *const post_norms[N_PARTS] = {"post_attention_norm.weight", "post_ffw_norm.weight"};

static const struct gguf_tensor *layer_tensor(const struct gguf_model *model, int layer, const char *suffix)
{
    char name[GGML_MAX_NAME];
    snprintf(name, sizeof name, "blk.%d.%s", layer, suffix);
    return gguf_model_tensor(model, name);
}

/* A key of the model's architecture, or `fallback`. */
static double setting(const struct gguf_model *model, const char *key, double fallback)
{
    char name[256], *arch = gguf_model_str(model, "general.architecture");
    double value = fallback;
    snprintf(name, sizeof name, "%s.%s", arch != NULL ? arch : "", key);
    free(arch);
    return gguf_model_f64(model, name, &value) && isfinite(value) && value > 0 ? value : fallback;
}

/* E |W x|^2 of a token, from a sample of rows. */
static allot_status map_energy(double *energy, const struct gguf_model *model, const struct gguf_tensor *t,
                               const struct imatrix *im, struct allot_error *err)
{
    struct moments moments;
    int64_t sample[WEIGHT_SAMPLE_ROWS];
    const int64_t n_in = t->ne[0], n_matrices = t->n_rows / t->ne[1];
    const int64_t n = weight_sample(sample, t->ne[1], n_matrices);
    double sum = 0, n_taken = 0;
    allot_status status = moments_init(&moments, im, t, err);
    if (status != ALLOT_OK)
        return status;
    float *row = malloc((size_t)n_in * sizeof *row);
    if (row == NULL)
        status = allot_fail_memory(err, (size_t)n_in * sizeof *row, t->name);
    for (int64_t k = 0; k < n_matrices && status == ALLOT_OK; k++) {
        const int64_t input = k % t->ne[2] * n_in;
        const double share = (double)moments.shares[k % t->ne[2]];
        n_taken += share;
        for (int64_t r = 0; r < n && status == ALLOT_OK; r++) {
            status = gguf_tensor_to_f32(model, t, k * t->ne[1] + sample[r], 1, row, NULL, err);
            if (status == ALLOT_OK)
                sum += share * expected_square(row, moments.s != NULL ? moments.s + input : NULL,
                                               moments.m != NULL ? moments.m + input : NULL, n_in);
        }
    }
    free(row);
    moments_release(&moments);
    *energy = sum / n_taken / (double)n * (double)t->ne[1];
    return status;
}

/* Energy of what has passed a norm with these weights. */
static allot_status norm_energy(double *energy, const struct gguf_model *model, const struct gguf_tensor *t,
                                struct allot_error *err)
{
    float *weights = malloc((size_t)t->n_elements * sizeof *weights);
    if (weights == NULL)
        return allot_fail_memory(err, (size_t)t->n_elements * sizeof *weights, t->name);
    allot_status status = gguf_tensor_to_f32(model, t, 0, t->n_rows, weights, NULL, err);
    *energy = 0;
    for (int64_t i = 0; i < t->n_elements && status == ALLOT_OK; i++)
        *energy += (double)weights[i] * weights[i];
    free(weights);
    return status;
}

static allot_status embedding_energy(double *energy, const struct gguf_model *model, struct allot_error *err)
{
    const struct gguf_tensor *embedding = gguf_model_tensor(model, "token_embd.weight");
    const struct gguf_tensor *norm = gguf_model_tensor(model, "token_embd_norm.weight");
    char *arch = gguf_model_str(model, "general.architecture");
    double scale = setting(model, "embedding_scale", 1);
    allot_status status = ALLOT_OK;
    *energy = 0;
    if (arch != NULL && strncmp(arch, "gemma", 5) == 0 && embedding != NULL)
        scale = sqrt((double)embedding->ne[0]); /* libllama's graphs, not a key */
    free(arch);
    if (norm != NULL)
        return norm_energy(energy, model, norm, err);
    if (embedding != NULL)
        status = map_energy(energy, model, embedding, NULL, err);
    if (embedding != NULL)
        *energy *= scale * scale / (double)embedding->n_rows;
    return status;
}

/* Of what a part of a layer adds; negative where its last map is not known. */
static allot_status part_energy(double *energy, const struct gguf_model *model, int layer, enum part part,
                                const struct imatrix *im, struct allot_error *err)
{
    const struct gguf_tensor *norm = layer_tensor(model, layer, post_norms[part]);
    allot_status status = ALLOT_OK;
    bool known = false;
    *energy = 0;
    for (size_t i = 0; i < sizeof writers / sizeof *writers && status == ALLOT_OK; i++) {
        const struct gguf_tensor *t = layer_tensor(model, layer, writers[i].suffix);
        double one = 0;
        if (t == NULL || writers[i].part != part)
            continue;
        status = map_energy(&one, model, t, im, err);
        if (strstr(writers[i].suffix, "exps") != NULL)
            one *= pow(setting(model, "expert_weights_scale", 1), 2) / setting(model, "expert_used_count", 1);
        *energy += one;
        known = true;
    }
    /* Where there is no other, this norm stands before the feed-forward part. */
    if (status == ALLOT_OK && known && norm != NULL &&
        (part == FEED_FORWARD || layer_tensor(model, layer, "ffn_norm.weight") != NULL))
        status = norm_energy(energy, model, norm, err);
    *energy *= pow(setting(model, "residual_scale", 1), 2);
    if (!known)
        *energy = -1;
    return status;
}

static enum part part_of(const struct gguf_tensor *t)
{
    const char *suffix = strchr(t->name + strlen("blk."), '.');
    return suffix != NULL && (strncmp(suffix, ".ffn", 4) == 0 || strncmp(suffix, ".channel_mix", 12) == 0)
               ? FEED_FORWARD
               : MIXER;
}

allot_status stream_shares(double *shares, const struct gguf_model *model, const struct imatrix *im,
                           struct allot_error *err)
{
    double stream = 0, energy;
    allot_status status = embedding_energy(&stream, model, err);
    for (int64_t i = 0; i < model->n_tensors; i++)
        shares[i] = 1;
    /* Tensors are in the order of layers. */
    for (int64_t first = 0, end; first < model->n_tensors && status == ALLOT_OK; first = end) {
        const int layer = model->tensors[first].layer;
        for (end = first + 1; end < model->n_tensors && model->tensors[end].layer == layer; end++)
            ;
        for (enum part part = MIXER; layer >= 0 && part < N_PARTS && status == ALLOT_OK; part++) {
            status = part_energy(&energy, model, layer, part, im, err);
            if (status != ALLOT_OK || energy < 0)
                continue;
            stream += energy;
            for (int64_t i = first; i < end; i++)
                if (part_of(&model->tensors[i]) == part)
                    shares[i] = stream > 0 ? energy / stream : 0;
        }
    }
    return status;
}
