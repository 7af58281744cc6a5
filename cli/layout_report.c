/* layout_report.c - what allot learn prints of layouts.  SPDX-License-Identifier: MIT */
#include "layout_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "describe.h"
#include "layouts.h"

/* ---- A layout as a whole ---------------------------------------------------------------------------- */

static double layout_bits(const struct layout *layout)
{
    double bytes = 0, n = 0;
    for (size_t i = 0; i < layout->n_tensors; i++) {
        const struct layout_tensor *t = &layout->tensors[i];
        bytes += (double)t->n_elements * (double)ggml_type_size(t->type) / (double)ggml_blck_size(t->type);
        n += (double)t->n_elements;
    }
    return n > 0 ? 8 * bytes / n : 0;
}

void layout_print_line(const struct layout *layout)
{
    struct strbuf origin = {0};
    layout_origin_text(&origin, layout);
    printf("learned: %s, %s of %d layers, %.4f bits per weight, from %s%s%s\n", layout->name,
           layout->architecture, layout->n_layers, layout_bits(layout), origin.data ? origin.data : "",
           layout_reproducible(layout) ? "" : " (not reproducible)",
           layout->learning_only ? " (learning only)" : "");
    strbuf_release(&origin);
}

static json_t *known(const char *text)
{
    return text[0] ? json_text(text) : json_null();
}

json_t *layout_json(const struct layout *layout)
{
    json_t *object = json_object();
    json_put(object, "name", json_text(layout->name));
    json_put(object, "architecture", json_text(layout->architecture));
    json_put(object, "layers", json_integer(layout->n_layers));
    json_put(object, "tensors", json_integer((json_int_t)layout->n_tensors));
    json_put(object, "bits_per_weight", json_number(layout_bits(layout)));
    json_put(object, "repository", known(layout->repository));
    json_put(object, "revision", known(layout->revision));
    json_put(object, "file", json_text(layout->file));
    json_put(object, "bytes", json_integer(layout->bytes));
    json_put(object, "sha256", json_text(layout->sha256));
    json_put(object, "layout_sha256", json_text(layout->hash));
    json_put(object, "learned", json_text(layout->date));
    json_put(object, "reproducible", json_boolean(layout_reproducible(layout)));
    json_put(object, "learning_only", json_boolean(layout->learning_only));
    return object;
}

/* The first of the list with the same layout as the index-th, before it; NULL: none. */
static const struct layout *equal_before(const struct layout_list *list, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (strcmp(list->items[i].hash, list->items[index].hash) == 0)
            return &list->items[i];
    return NULL;
}

static void list_row(struct table *t, const struct layout_list *list, size_t index)
{
    const struct layout *layout = &list->items[index], *equal = equal_before(list, index);
    struct strbuf origin = {0}, remarks = {0};
    layout_origin_text(&origin, layout);
    if (!layout_reproducible(layout))
        strbuf_addf(&remarks, "not reproducible");
    if (layout->learning_only)
        strbuf_addf(&remarks, "%slearning only", remarks.len ? ", " : "");
    if (equal)
        strbuf_addf(&remarks, "%sthe same as %s", remarks.len ? ", " : "", equal->name);
    table_cell(t, "%s", layout->name);
    table_cell(t, "%s", layout->architecture);
    table_cell(t, "%d", layout->n_layers);
    table_cell(t, "%.4f", layout_bits(layout));
    table_cell(t, "%" PRId64, layout->bytes);
    table_cell(t, "%.8s", layout->sha256);
    table_cell(t, "%s", layout->date);
    table_cell(t, "%s", origin.data ? origin.data : "");
    table_cell(t, "%s", remarks.data ? remarks.data : "-");
    strbuf_release(&origin);
    strbuf_release(&remarks);
}

allot_status layouts_report(const struct layout_list *list, bool json, struct allot_error *err)
{
    static const char *const headings[] = {"<layout",          "<architecture", ">layers",
                                           ">bits per weight", ">bytes",        "<SHA-256",
                                           "<learned",         "<from",         "<remarks"};
    struct table t;
    if (json) {
        json_t *document = json_array();
        for (size_t i = 0; i < list->n; i++)
            json_array_append_new(document, layout_json(&list->items[i]));
        return json_print(document, err);
    }
    table_init(&t, headings, sizeof headings / sizeof *headings);
    for (size_t i = 0; i < list->n; i++)
        list_row(&t, list, i);
    return table_print(&t, err);
}

/* ---- Groups and layers ------------------------------------------------------------------------------ */

/* What one layout, or two, have in one place; -1: no such tensor. */
struct place {
    enum role role;
    const char *stem;
    int layer, a, b;
};

static int by_group(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->role != y->role)
        return x->role < y->role ? -1 : 1;
    const int order = strcmp(x->stem, y->stem);
    return order ? order : (x->layer > y->layer) - (x->layer < y->layer);
}

struct places {
    struct place *list;
    size_t n;
};

static allot_status places_of(struct places *p, const struct layout *a, const struct layout *b,
                              struct allot_error *err)
{
    const struct layout *const layouts[] = {a, b};
    const size_t most = a->n_tensors + (b ? b->n_tensors : 0);
    size_t n = 0;
    p->list = calloc(most + 1, sizeof *p->list);
    p->n = 0;
    if (!p->list)
        return allot_fail_memory(err, most * sizeof *p->list, "a table of layouts");
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; layouts[l] && i < layouts[l]->n_tensors; i++) {
            const struct layout_tensor *t = &layouts[l]->tensors[i];
            const int type = (int)t->type;
            p->list[n++] =
                (struct place){t->role, role_stem(t->name), t->layer, l == 0 ? type : -1, l == 1 ? type : -1};
        }
    qsort(p->list, n, sizeof *p->list, by_group);
    for (size_t i = 0; i < n; i++) {
        struct place *last = p->n ? &p->list[p->n - 1] : NULL;
        if (!last || by_group(last, &p->list[i]) != 0) {
            p->list[p->n++] = p->list[i];
            continue;
        }
        last->a = p->list[i].a >= 0 ? p->list[i].a : last->a;
        last->b = p->list[i].b >= 0 ? p->list[i].b : last->b;
    }
    return ALLOT_OK;
}

/* The end of the places of one group and name that start at `first`. */
static size_t end_of_name(const struct places *p, size_t first)
{
    size_t end = first + 1;
    while (end < p->n && p->list[end].role == p->list[first].role &&
           strcmp(p->list[end].stem, p->list[first].stem) == 0)
        end++;
    return end;
}

static bool same_types(const struct place *x, const struct place *y)
{
    return x->a == y->a && x->b == y->b;
}

/* Have places of [first, i) the types of place i? Then it was told of with them. */
static bool told(const struct places *p, size_t first, size_t i)
{
    for (size_t k = first; k < i; k++)
        if (same_types(&p->list[k], &p->list[i]))
            return true;
    return false;
}

/* "0-3,8": the layers of [first, end) with the types of `like`; "-": outside of layers. */
static void layers_text(struct strbuf *sb, const struct places *p, size_t first, size_t end,
                        const struct place *like)
{
    const char *separator = "";
    for (size_t i = first; i < end; i++) {
        size_t last = i;
        if (!same_types(&p->list[i], like))
            continue;
        while (last + 1 < end && same_types(&p->list[last + 1], like) &&
               p->list[last + 1].layer == p->list[last].layer + 1)
            last++;
        if (p->list[i].layer < 0)
            strbuf_addf(sb, "-");
        else if (last > i)
            strbuf_addf(sb, "%s%d-%d", separator, p->list[i].layer, p->list[last].layer);
        else
            strbuf_addf(sb, "%s%d", separator, p->list[i].layer);
        separator = ",";
        i = last;
    }
}

static const char *label(int type)
{
    return type < 0 ? "-" : type_label((enum ggml_type)type);
}

static int stem_length(const char *stem)
{
    return (int)(strlen(stem) - (str_ends_with(stem, ".weight") ? strlen(".weight") : 0));
}

/* ---- One layout ------------------------------------------------------------------------------------- */

/* "Q6_K 0-3,7; Q4_K 4-6", or the one type of all. */
static void types_text(struct strbuf *sb, const struct places *p, size_t first, size_t end)
{
    bool one = true;
    for (size_t i = first; i < end; i++)
        one &= same_types(&p->list[i], &p->list[first]);
    for (size_t i = first; i < end; i++) {
        if (told(p, first, i))
            continue;
        strbuf_addf(sb, "%s%s", i > first ? "; " : "", label(p->list[i].a));
        if (one)
            return;
        strbuf_addf(sb, " ");
        layers_text(sb, p, first, end, &p->list[i]);
    }
}

/* Norms and the like are told of only where they are not kept exact. */
static bool worth_a_row(const struct places *p, size_t first, size_t end)
{
    bool exact = true;
    for (size_t i = first; i < end; i++)
        exact &= layout_exact_type((enum ggml_type)p->list[i].a);
    return p->list[first].role != ROLE_OTHER || !exact;
}

static allot_status print_groups(const struct layout *layout, struct allot_error *err)
{
    static const char *const headings[] = {"<group", "<tensor", ">tensors", "<types by layer"};
    struct places p;
    struct table t;
    size_t n_left = 0;
    if (places_of(&p, layout, NULL, err) != ALLOT_OK)
        return err->status;
    table_init(&t, headings, 4);
    for (size_t first = 0, end; first < p.n; first = end) {
        struct strbuf types = {0};
        end = end_of_name(&p, first);
        if (!worth_a_row(&p, first, end)) {
            n_left += end - first;
            continue;
        }
        types_text(&types, &p, first, end);
        table_cell(&t, "%s", role_name(p.list[first].role));
        table_cell(&t, "%.*s", stem_length(p.list[first].stem), p.list[first].stem);
        table_cell(&t, "%zu", end - first);
        table_cell(&t, "%s", types.data ? types.data : "");
        strbuf_release(&types);
    }
    free(p.list);
    allot_status status = table_print(&t, err);
    if (n_left)
        printf("other: %zu norms, biases and the like, kept exact\n", n_left);
    return status;
}

static size_t count_layout_types(struct type_use *uses, const struct layout *layout)
{
    struct type_use all[GGML_TYPE_COUNT] = {0};
    size_t n = 0;
    for (size_t i = 0; i < layout->n_tensors; i++) {
        const struct layout_tensor *t = &layout->tensors[i];
        all[t->type].type = t->type;
        all[t->type].n_tensors++;
        all[t->type].n_elements += t->n_elements;
        all[t->type].bytes += t->n_elements / ggml_blck_size(t->type) * (int64_t)ggml_type_size(t->type);
    }
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (!all[type].n_tensors)
            continue;
        size_t at = n++;
        for (; at > 0 && uses[at - 1].bytes < all[type].bytes; at--)
            uses[at] = uses[at - 1];
        uses[at] = all[type];
    }
    return n;
}

static json_t *tensors_json(const struct layout *layout)
{
    json_t *list = json_array();
    for (size_t i = 0; i < layout->n_tensors; i++) {
        json_t *entry = json_object();
        json_put(entry, "name", json_text(layout->tensors[i].name));
        json_put(entry, "group", json_text(role_name(layout->tensors[i].role)));
        json_put(entry, "type", json_text(type_label(layout->tensors[i].type)));
        json_array_append_new(list, entry);
    }
    return list;
}

allot_status layout_report(const struct layout *layout, bool json, struct allot_error *err)
{
    struct type_use uses[GGML_TYPE_COUNT];
    const size_t n_uses = count_layout_types(uses, layout);
    struct strbuf origin = {0};
    char size[32];
    if (json) {
        json_t *document = layout_json(layout);
        json_put(document, "types", types_json(uses, n_uses));
        json_put(document, "layout", tensors_json(layout));
        return json_print(document, err);
    }
    layout_origin_text(&origin, layout);
    printf("%s%s\n", layout->name, layout->learning_only ? " (learning only)" : "");
    printf("  architecture: %s, %d layers\n", layout->architecture, layout->n_layers);
    printf("  learned: %s, from %s%s\n", layout->date, origin.data ? origin.data : "",
           layout_reproducible(layout) ? "" : " (not reproducible)");
    printf("  size: %" PRId64 " bytes (%s), %.4f bits per weight\n", layout->bytes,
           str_size(size, layout->bytes), layout_bits(layout));
    printf("  SHA-256: %s\n  of the layout: %s\n\n", layout->sha256, layout->hash);
    strbuf_release(&origin);
    allot_status status = types_print(uses, n_uses, err);
    putchar('\n');
    return status == ALLOT_OK ? print_groups(layout, err) : status;
}

/* ---- Two layouts ------------------------------------------------------------------------------------ */

/* F32, F16 and BF16 are one class. */
static bool differs(const struct place *p)
{
    const bool both = p->a >= 0 && p->b >= 0;
    return p->a != p->b &&
           !(both && layout_exact_type((enum ggml_type)p->a) && layout_exact_type((enum ggml_type)p->b));
}

static allot_status print_differences(const struct places *p, const struct layout *a, const struct layout *b,
                                      struct allot_error *err)
{
    char first_heading[260], second_heading[260];
    snprintf(first_heading, sizeof first_heading, "<%.255s", a->name);
    snprintf(second_heading, sizeof second_heading, "<%.255s", b->name);
    const char *const headings[] = {"<group", "<tensor", "<layers", first_heading, second_heading};
    struct table t;
    table_init(&t, headings, 5);
    for (size_t first = 0, end; first < p->n; first = end) {
        end = end_of_name(p, first);
        for (size_t i = first; i < end; i++) {
            const struct place *place = &p->list[i];
            struct strbuf layers = {0};
            if (!differs(place) || told(p, first, i))
                continue;
            layers_text(&layers, p, first, end, place);
            table_cell(&t, "%s", role_name(place->role));
            table_cell(&t, "%.*s", stem_length(place->stem), place->stem);
            table_cell(&t, "%s", layers.data ? layers.data : "");
            table_cell(&t, "%s", label(place->a));
            table_cell(&t, "%s", label(place->b));
            strbuf_release(&layers);
        }
    }
    return table_print(&t, err);
}

static json_t *differences_json(const struct places *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->n; i++) {
        const struct place *place = &p->list[i];
        if (!differs(place))
            continue;
        json_t *entry = json_object();
        json_put(entry, "group", json_text(role_name(place->role)));
        json_put(entry, "tensor", json_text(place->stem));
        json_put(entry, "layer", place->layer < 0 ? json_null() : json_integer(place->layer));
        json_put(entry, "a", place->a < 0 ? json_null() : json_text(label(place->a)));
        json_put(entry, "b", place->b < 0 ? json_null() : json_text(label(place->b)));
        json_array_append_new(list, entry);
    }
    return list;
}

/* Groups in which nothing differs. */
static void print_alike(const struct places *p)
{
    bool holds[N_ROLES] = {false}, other[N_ROLES] = {false};
    const char *separator = "alike:";
    for (size_t i = 0; i < p->n; i++) {
        holds[p->list[i].role] = true;
        other[p->list[i].role] |= differs(&p->list[i]);
    }
    for (int role = 0; role < N_ROLES; role++)
        if (holds[role] && !other[role]) {
            printf("%s %s", separator, role_name((enum role)role));
            separator = ",";
        }
    if (separator[0] == ',')
        putchar('\n');
}

allot_status layout_diff_report(const struct layout *a, const struct layout *b, bool json,
                                struct allot_error *err)
{
    struct places p;
    size_t n_differing = 0;
    allot_status status = places_of(&p, a, b, err);
    if (status != ALLOT_OK)
        return status;
    for (size_t i = 0; i < p.n; i++)
        n_differing += differs(&p.list[i]);
    if (json) {
        json_t *document = json_object();
        json_put(document, "a", layout_json(a));
        json_put(document, "b", layout_json(b));
        json_put(document, "tensors", json_integer((json_int_t)p.n));
        json_put(document, "differing", json_integer((json_int_t)n_differing));
        json_put(document, "differences", differences_json(&p));
        status = json_print(document, err);
    } else {
        if (n_differing)
            status = print_differences(&p, a, b, err);
        printf("%zu of %zu tensors differ; %.4f and %.4f bits per weight\n", n_differing, p.n, layout_bits(a),
               layout_bits(b));
        print_alike(&p);
    }
    free(p.list);
    return status;
}
