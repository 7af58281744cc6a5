/* describe.c - facts about a GGUF model, in the words of the command line.  SPDX-License-Identifier: MIT */
#include "describe.h"

#include <stdlib.h>
#include <string.h>
#include <inttypes.h>

#include "base/error.h"
#include "quant/quant.h"

const char *type_label(enum ggml_type type)
{
    const struct quant_type *qt = quant_type_find(type);
    return qt ? qt->name : ggml_type_name(type);
}

const char *file_type_label(int64_t file_type)
{
    /* Mixes that are nobody's plainest form; the rest come from the table of types. */
    static const struct {
        int64_t number;
        const char *name;
    } mixes[] = {
        {LLAMA_FTYPE_MOSTLY_Q2_K_S, "Q2_K_S"}, {LLAMA_FTYPE_MOSTLY_Q3_K_S, "Q3_K_S"},
        {LLAMA_FTYPE_MOSTLY_Q3_K_L, "Q3_K_L"}, {LLAMA_FTYPE_MOSTLY_Q4_K_S, "Q4_K_S"},
        {LLAMA_FTYPE_MOSTLY_Q5_K_S, "Q5_K_S"}, {LLAMA_FTYPE_MOSTLY_IQ2_S, "IQ2_S"},
        {LLAMA_FTYPE_MOSTLY_IQ3_XS, "IQ3_XS"}, {LLAMA_FTYPE_MOSTLY_IQ3_M, "IQ3_M"},
    };
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (mixes[i].number == file_type)
            return mixes[i].name;
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (size_t i = 0; i < n; i++)
        if ((int64_t)types[i].file_type == file_type)
            return types[i].ftype ? types[i].ftype : types[i].name;
    return NULL;
}

int64_t model_parameters(const struct gguf_model *model)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        n += model->tensors[i].n_elements;
    return n;
}

int64_t model_data_bytes(const struct gguf_model *model)
{
    int64_t n = 0;
    for (int64_t i = 0; i < model->n_tensors; i++)
        n += model->tensors[i].n_bytes;
    return n;
}

double bits_per_weight(int64_t data_bytes, int64_t n_parameters)
{
    return n_parameters > 0 ? 8.0 * (double)data_bytes / (double)n_parameters : 0;
}

/* ---- Types ----------------------------------------------------------------------------------- */

static int by_bytes_falling(const void *a, const void *b)
{
    const struct type_use *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (int)x->type - (int)y->type;
}

size_t count_types(struct type_use *uses, const struct gguf_model *model, const enum ggml_type *types,
                   bool quantizable_only)
{
    struct type_use all[GGML_TYPE_COUNT] = {0};
    size_t n = 0;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        if (quantizable_only && !gguf_tensor_quantizable(tensor))
            continue;
        enum ggml_type type = types ? types[i] : tensor->type;
        all[type].n_tensors++;
        all[type].n_elements += tensor->n_elements;
        all[type].bytes += (int64_t)ggml_row_size(type, tensor->ne[0]) * tensor->n_rows;
    }
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        all[type].type = (enum ggml_type)type;
        if (all[type].n_tensors)
            uses[n++] = all[type];
    }
    qsort(uses, n, sizeof *uses, by_bytes_falling);
    return n;
}

json_t *types_json(const struct type_use *uses, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *entry = json_object();
        json_put(entry, "type", json_text(type_label(uses[i].type)));
        json_put(entry, "tensors", json_integer(uses[i].n_tensors));
        json_put(entry, "parameters", json_integer(uses[i].n_elements));
        json_put(entry, "bytes", json_integer(uses[i].bytes));
        json_array_append_new(list, entry);
    }
    return list;
}

allot_status types_print(const struct type_use *uses, size_t n, struct allot_error *err)
{
    static const char *const headings[] = {"<type", ">tensors", ">parameters", ">bytes", ">share"};
    struct table t;
    int64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += uses[i].bytes;
    table_init(&t, headings, 5);
    for (size_t i = 0; i < n; i++) {
        table_cell(&t, "%s", type_label(uses[i].type));
        table_cell(&t, "%" PRId64, uses[i].n_tensors);
        table_cell(&t, "%" PRId64, uses[i].n_elements);
        table_cell(&t, "%" PRId64, uses[i].bytes);
        table_cell(&t, "%.1f%%", total ? 100.0 * (double)uses[i].bytes / (double)total : 0.0);
    }
    return table_print(&t, err);
}

/* ---- Layers x roles -------------------------------------------------------------------------- */

enum { MAX_ROLES = 48, MAX_LAYERS = 65536 };

struct layer_table {
    char roles[MAX_ROLES][64];
    size_t n_roles;
    int n_layers;
    int *cells; /* (n_layers, MAX_ROLES): type, or -1 */
};

bool layer_role(char role[static 64], const char *name)
{
    const char *dot = strchr(name, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    if (!dot || !str_ends_with(dot, ".weight"))
        return false;
    size_t n = strlen(dot) - strlen(".weight");
    if (n < 2 || n > 64)
        return false;
    memcpy(role, dot + 1, n - 1);
    role[n - 1] = '\0';
    return true;
}

/* Only matrices have a role. False: nothing for the table. */
static bool tensor_role(char role[static 64], const struct gguf_tensor *tensor)
{
    return tensor->layer >= 0 && tensor->layer < MAX_LAYERS && tensor->n_rows > 1 &&
           layer_role(role, tensor->name);
}

/* The order in which a layer computes; roles not named here follow by name. */
static int role_rank(const char *role)
{
    static const char *const order[] = {"attn_q",       "attn_k",        "attn_v",      "attn_qkv",
                                        "attn_output",  "ffn_gate",      "ffn_up",      "ffn_down",
                                        "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    const int n = sizeof order / sizeof *order;
    for (int i = 0; i < n; i++)
        if (strcmp(order[i], role) == 0)
            return i;
    return n;
}

int compare_roles(const void *a, const void *b)
{
    int difference = role_rank(a) - role_rank(b);
    return difference ? difference : strcmp(a, b);
}

static void collect_roles(struct layer_table *lt, const struct gguf_model *model)
{
    char role[64];
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        if (!tensor_role(role, tensor))
            continue;
        if (tensor->layer >= lt->n_layers)
            lt->n_layers = tensor->layer + 1;
        size_t r = 0;
        while (r < lt->n_roles && strcmp(lt->roles[r], role) != 0)
            r++;
        if (r == lt->n_roles && lt->n_roles < MAX_ROLES)
            memcpy(lt->roles[lt->n_roles++], role, sizeof role);
    }
    qsort(lt->roles, lt->n_roles, sizeof *lt->roles, compare_roles);
}

static void fill_cells(struct layer_table *lt, const struct gguf_model *model, const enum ggml_type *types)
{
    char role[64];
    for (int64_t i = 0; i < (int64_t)lt->n_layers * MAX_ROLES; i++)
        lt->cells[i] = -1;
    for (int64_t i = 0; i < model->n_tensors; i++) {
        if (!tensor_role(role, &model->tensors[i]))
            continue;
        for (size_t r = 0; r < lt->n_roles; r++)
            if (strcmp(lt->roles[r], role) == 0)
                lt->cells[(size_t)model->tensors[i].layer * MAX_ROLES + r] =
                    types ? (int)types[i] : (int)model->tensors[i].type;
    }
}

static allot_status print_layer_rows(const struct layer_table *lt, struct allot_error *err)
{
    char headings[MAX_ROLES + 1][65] = {"<layers"};
    const char *pointers[MAX_ROLES + 1] = {headings[0]};
    for (size_t r = 0; r < lt->n_roles; r++) {
        headings[r + 1][0] = '<';
        memcpy(headings[r + 1] + 1, lt->roles[r], sizeof lt->roles[r]);
        pointers[r + 1] = headings[r + 1];
    }
    struct table t;
    table_init(&t, pointers, lt->n_roles + 1);
    for (int first = 0, next; first < lt->n_layers; first = next) {
        const int *row = lt->cells + (size_t)first * MAX_ROLES;
        next = first + 1;
        while (next < lt->n_layers &&
               memcmp(row, lt->cells + (size_t)next * MAX_ROLES, MAX_ROLES * sizeof *row) == 0)
            next++;
        if (next - first > 1)
            table_cell(&t, "%d-%d", first, next - 1);
        else
            table_cell(&t, "%d", first);
        for (size_t r = 0; r < lt->n_roles; r++)
            table_cell(&t, "%s", row[r] < 0 ? "-" : type_label((enum ggml_type)row[r]));
    }
    return table_print(&t, err);
}

/* Matrices outside the layers, one line. */
static void print_other_matrices(const struct gguf_model *model, const enum ggml_type *types)
{
    const char *separator = "others: ";
    for (int64_t i = 0; i < model->n_tensors; i++) {
        const struct gguf_tensor *tensor = &model->tensors[i];
        if (tensor->layer >= 0 || tensor->n_rows < 2)
            continue;
        size_t n = strlen(tensor->name);
        if (str_ends_with(tensor->name, ".weight"))
            n -= strlen(".weight");
        printf("%s%.*s %s", separator, (int)n, tensor->name, type_label(types ? types[i] : tensor->type));
        separator = ", ";
    }
    if (*separator == ',')
        putchar('\n');
}

allot_status layers_print(const struct gguf_model *model, const enum ggml_type *types,
                          struct allot_error *err)
{
    struct layer_table lt = {0};
    collect_roles(&lt, model);
    if (lt.n_layers > 0) {
        lt.cells = malloc((size_t)lt.n_layers * MAX_ROLES * sizeof *lt.cells);
        if (!lt.cells)
            return allot_fail_memory(err, (size_t)lt.n_layers * MAX_ROLES * sizeof *lt.cells,
                                     "the table of layers");
        fill_cells(&lt, model, types);
        allot_status status = print_layer_rows(&lt, err);
        free(lt.cells);
        if (status != ALLOT_OK)
            return status;
    }
    print_other_matrices(model, types);
    return ALLOT_OK;
}
