/* cmd_inspect.c - allot inspect: what is in a GGUF file.  SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "describe.h"

struct inspect_arguments {
    struct common_arguments common;
    bool tensors;
};

static const struct option_row rows[] = {
    {"tensors", 0, NULL, OPTION_FLAG, offsetof(struct inspect_arguments, tensors), NULL, 0,
     "list every tensor: shape, type, bytes, place in the file"},
};

static const struct option_set options = OPTION_SET(rows);

/* Scalars of the header worth a line, after the architecture's name. */
static const char *const hyperparameters[] = {
    "block_count",          "embedding_length",        "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "context_length",
    "expert_count",         "expert_used_count",
};
static const char *const provenance[] = {
    "quantize.imatrix.file", "quantize.imatrix.dataset", "allot.version",
    "allot.imatrix.sha256",  "allot.source.sha256",      "allot.rounding",
};

static void shape_text(char buf[static 96], const struct gguf_tensor *tensor)
{
    int n = 0;
    for (int d = 0; d < tensor->n_dims && n < 80; d++)
        n += snprintf(buf + n, 96 - (size_t)n, "%s%" PRId64, d ? " x " : "", tensor->ne[d]);
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void print_string(const struct gguf_model *model, const char *key)
{
    char *text = gguf_model_str(model, key);
    if (text)
        printf("  %s: %s\n", key, text);
    free(text);
}

static void print_metadata(const struct gguf_model *model)
{
    char *arch = gguf_model_str(model, "general.architecture");
    int64_t number;
    double real;
    print_string(model, "general.name");
    print_string(model, "general.type");
    if (gguf_model_i64(model, "general.file_type", &number))
        printf("  general.file_type: %" PRId64 " (%s)\n", number,
               file_type_label(number) ? file_type_label(number) : "unknown");
    for (size_t i = 0; arch && i < sizeof hyperparameters / sizeof *hyperparameters; i++) {
        char key[192];
        snprintf(key, sizeof key, "%.100s.%s", arch, hyperparameters[i]);
        if (gguf_model_i64(model, key, &number))
            printf("  %s: %" PRId64 "\n", key, number);
        else if (gguf_model_f64(model, key, &real))
            printf("  %s: %g\n", key, real);
    }
    print_string(model, "tokenizer.ggml.model");
    if ((number = gguf_model_array_len(model, "tokenizer.ggml.tokens")) >= 0)
        printf("  vocabulary: %" PRId64 "\n", number);
    for (size_t i = 0; i < sizeof provenance / sizeof *provenance; i++)
        print_string(model, provenance[i]);
    free(arch);
}

static allot_status print_tensors(const struct gguf_model *model, struct allot_error *err)
{
    static const char *const headings[] = {"<tensor", "<type", ">shape", ">bytes", ">shard", ">offset"};
    struct table t;
    table_init(&t, headings, 6);
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        char shape[96];
        shape_text(shape, tensor);
        table_cell(&t, "%s", tensor->name);
        table_cell(&t, "%s", type_label(tensor->type));
        table_cell(&t, "%s", shape);
        table_cell(&t, "%" PRId64, tensor->n_bytes);
        table_cell(&t, "%d", tensor->shard + 1);
        table_cell(&t, "%" PRId64, tensor->file_offset);
    }
    putchar('\n');
    return table_print(&t, err);
}

static allot_status print_model(const struct gguf_model *model, bool tensors, struct allot_error *err)
{
    struct type_use uses[GGML_TYPE_COUNT];
    char size[32], *arch = gguf_model_str(model, "general.architecture");
    int64_t n_parameters = model_parameters(model);
    size_t n_types = count_types(uses, model, NULL, false);

    printf("%s\n", model->path);
    printf("  architecture: %s\n", arch ? arch : "(none)");
    printf("  parameters: %" PRId64 "\n", n_parameters);
    printf("  size: %" PRId64 " bytes (%s)", model->total_bytes, str_size(size, model->total_bytes));
    if (model->n_shards > 1)
        printf(" in %d files", model->n_shards);
    printf("\n  bits per weight: %.4f\n", bits_per_weight(model_data_bytes(model), n_parameters));
    printf("  tensors: %" PRId64 ", metadata entries: %" PRId64 "\n", model->n_tensors, model->n_kv);
    print_metadata(model);
    free(arch);

    putchar('\n');
    allot_status status = types_print(uses, n_types, err);
    putchar('\n');
    if (status == ALLOT_OK)
        status = layers_print(model, NULL, err);
    if (status == ALLOT_OK && tensors)
        status = print_tensors(model, err);
    return status;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *tensors_json(const struct gguf_model *model)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        json_t *entry = json_object(), *shape = json_array();
        for (int d = 0; d < tensor->n_dims; d++)
            json_array_append_new(shape, json_integer(tensor->ne[d]));
        json_put(entry, "name", json_text(tensor->name));
        json_put(entry, "type", json_text(type_label(tensor->type)));
        json_put(entry, "shape", shape);
        json_put(entry, "bytes", json_integer(tensor->n_bytes));
        json_put(entry, "shard", json_integer(tensor->shard));
        json_put(entry, "offset", json_integer(tensor->file_offset));
        json_put(entry, "quantizable", json_boolean(gguf_tensor_quantizable(tensor)));
        json_array_append_new(list, entry);
    }
    return list;
}

/* Every scalar and string of the header; arrays by their length. */
static json_t *metadata_json(const struct gguf_model *model)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < model->n_kv; i++) {
        const char *key = model->kv[i].key;
        char *text = gguf_model_str(model, key);
        int64_t integer, length = gguf_model_array_len(model, key);
        double real;
        bool truth;
        json_t *value;
        if (text)
            value = json_text(text);
        else if (length >= 0)
            value = json_pack("{s:I}", "length", (json_int_t)length);
        else if (gguf_model_bool(model, key, &truth))
            value = json_boolean(truth);
        else if (gguf_model_i64(model, key, &integer))
            value = json_integer(integer);
        else if (gguf_model_f64(model, key, &real))
            value = json_number(real);
        else
            value = json_null();
        free(text);
        json_put(object, key, value);
    }
    return object;
}

static json_t *model_json(const struct gguf_model *model)
{
    struct type_use uses[GGML_TYPE_COUNT];
    json_t *object = json_object();
    int64_t n_parameters = model_parameters(model);
    char *arch = gguf_model_str(model, "general.architecture");
    json_put(object, "path", json_text(model->path));
    json_put(object, "architecture", arch ? json_text(arch) : json_null());
    json_put(object, "parameters", json_integer(n_parameters));
    json_put(object, "bytes", json_integer(model->total_bytes));
    json_put(object, "files", json_integer(model->n_shards));
    json_put(object, "bits_per_weight", json_number(bits_per_weight(model_data_bytes(model), n_parameters)));
    json_put(object, "metadata", metadata_json(model));
    json_put(object, "types", types_json(uses, count_types(uses, model, NULL, false)));
    json_put(object, "tensors", tensors_json(model));
    free(arch);
    return object;
}

static allot_status run(const void *arguments, const struct allot_progress *progress, struct allot_error *err)
{
    const struct inspect_arguments *args = arguments;
    allot_status status = ALLOT_OK;
    json_t *document = args->common.json ? json_array() : NULL;
    (void)progress;
    for (size_t i = 0; status == ALLOT_OK && i < args->common.operands.n; i++) {
        struct gguf_model *model = NULL;
        status = gguf_model_open(&model, args->common.operands.items[i], err);
        if (status == ALLOT_OK && document) {
            json_array_append_new(document, model_json(model));
        } else if (status == ALLOT_OK) {
            if (i)
                putchar('\n');
            status = print_model(model, args->tensors, err);
        }
        gguf_model_close(model);
    }
    if (status == ALLOT_OK && document)
        return json_print(document, err);
    json_decref(document);
    return status;
}

const struct command command_inspect = {
    .name = "inspect",
    .synopsis = "FILE... [options]",
    .summary = "what is in a GGUF file: sizes, types, a table of layers and roles",
    .description = "Prints architecture, parameters, size, bits per weight, the main metadata, the types "
                   "with their counts "
                   "and bytes, and a table of the types by layer and role. Of a split model any one file may "
                   "be given. Bits "
                   "per weight are those of the tensor data, as llama.cpp prints them.",
    .options = {&options},
    .arguments_size = sizeof(struct inspect_arguments),
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .run = run,
};
