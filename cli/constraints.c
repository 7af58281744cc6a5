/* constraints.c - what a plan may give the tensors.  SPDX-License-Identifier: MIT */
#include "constraints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "budget.h"
#include "quant/quant.h"
#include "recipe_types.h"

#define OF(member) offsetof(struct sized_arguments, constraints.member)
static const struct option_row rows[] = {
    {"budget", 0, "RE=SIZE", OPTION_STRINGS, OF(budgets), NULL, 0,
     "the tensors whose names the regular expression RE matches may take SIZE bytes together at most; a "
     "tensor counts for the first that matches; without --size, --bpw or --like the rest has no limit"},
    {"pin", 0, "RE=TYPE", OPTION_STRINGS, OF(pins), NULL, 0,
     "tensors that match RE get this type, or llama-quantize's fallback where their rows do not fit it; the "
     "first match wins, and outweighs --types, --compat, --min and --max"},
    {"min", 0, "[RE=]TYPE", OPTION_STRINGS, OF(mins), NULL, 0,
     "no type of fewer bits per weight for tensors that match RE, or for all; the first match wins"},
    {"max", 0, "[RE=]TYPE", OPTION_STRINGS, OF(maxs), NULL, 0, "likewise no type of more bits per weight"},
    {"tie", 0, "RE", OPTION_STRINGS, OF(ties), NULL, 0,
     "one type for all tensors that match RE; with groups in RE, one for all where the groups caught the "
     "same: "
     "'blk\\.(\\d+)\\.attn_[qk]\\.' ties two tensors of each layer"},
    {"compat", 0, "SET", OPTION_STRING, OF(compat), NULL, 0,
     "only types that an engine has: k-quants (Q2_K to Q6_K, Q4_0 to Q5_1, Q8_0, F16, F32), legacy (the same "
     "without K) or no-iq (all but IQ*); a tensor's own type as with --types"},
    {"interactions", 0, NULL, OPTION_FLAG, OF(interactions), NULL, 0,
     "let errors of tensors add to or cancel each other as the samples of the costs have it, where that pays "
     "on samples "
     "that the search has not seen"},
};
#undef OF
const struct option_set constraint_options = OPTION_SET(rows);

const char *constraint_option_given(const struct string_list *given)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (string_list_has(given, rows[i].name))
            return rows[i].name;
    return NULL;
}

double type_bits(enum ggml_type type)
{
    return 8.0 * (double)ggml_type_size(type) / (double)ggml_blck_size(type);
}

/* ---- Sets of types --------------------------------------------------------------------------- */

/* What engines have. Either a list, or all types but those whose names start so. */
static const struct compat_set {
    const char *name, *only, *without;
} compat_sets[] = {
    /* Engines that took llama.cpp's kernels before the types with grids came (January 2024), or left those
     * out: they need tables in fast memory. */
    {"k-quants", "Q2_K,Q3_K,Q4_K,Q5_K,Q6_K,Q4_0,Q4_1,Q5_0,Q5_1,Q8_0,F16,F32", NULL},
    /* Blocks of 32 with one scale, those of the first GGUF files (August 2023): the least that readers of the
     * format support. */
    {"legacy", "Q4_0,Q4_1,Q5_0,Q5_1,Q8_0,F16,F32", NULL},
    /* Where types with grids run, but slowly: processors without wide look-ups. */
    {"no-iq", NULL, "IQ"},
};

static const char *compat_name(const void *user, size_t i)
{
    (void)user;
    return i < sizeof compat_sets / sizeof *compat_sets ? compat_sets[i].name : NULL;
}

static allot_status compat_parse(struct type_set *set, const char *name, struct allot_error *err)
{
    const struct compat_set *found = NULL;
    const char *near = nearest_word(name, compat_name, NULL);
    size_t n;
    const struct quant_type *types = quant_types(&n);
    for (size_t i = 0; i < sizeof compat_sets / sizeof *compat_sets; i++)
        if (strcmp(compat_sets[i].name, name) == 0)
            found = &compat_sets[i];
    if (!found)
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--compat: unknown set '%s'; known are k-quants, legacy and no-iq%s%s%s", name,
                          near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    if (found->only)
        return type_set_parse(set, found->only, err);
    memset(set, 0, sizeof *set);
    set->given = true;
    for (size_t i = 0; i < n; i++)
        set->has[types[i].type] = strncmp(types[i].name, found->without, strlen(found->without)) != 0;
    return ALLOT_OK;
}

allot_status constraint_types(struct type_set *set, const char *types, const char *compat,
                              struct allot_error *err)
{
    struct type_set other;
    bool any = false;
    allot_status status = type_set_parse(set, types, err);
    if (status != ALLOT_OK || !compat)
        return status;
    status = compat_parse(&other, compat, err);
    for (int t = 0; status == ALLOT_OK && t < GGML_TYPE_COUNT; t++) {
        set->has[t] = other.has[t] && (!set->given || set->has[t]);
        any |= set->has[t];
    }
    set->given = true;
    if (status == ALLOT_OK && !any)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--compat %s has none of --types %s", compat, types);
    return status;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

const char *constraint_label(char buf[static 200], const struct constraint_rule *rule)
{
    snprintf(buf, 200, "--%s '%.150s%s'", rule->option, rule->text, strlen(rule->text) > 150 ? "..." : "");
    return buf;
}

/* What stands right of the last '='; patterns may hold more of them. */
static allot_status parse_value(struct constraint_rule *rule, const char *value, bool is_size,
                                struct allot_error *err)
{
    if (is_size) {
        if (str_parse_size(value, &rule->bytes))
            return ALLOT_OK;
        return allot_fail(err, ALLOT_ERR_ARGUMENT,
                          "--%s: '%s' is not a size (such as 6GB, 5.5GiB or 104857600)", rule->option, value);
    }
    const struct quant_type *type = quant_type_by_name(value);
    if (!type)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: unknown type '%.60s'; known are %s", rule->option,
                          value, quant_type_names());
    rule->type = type->type;
    return ALLOT_OK;
}

enum rule_form { RULE_TYPE, RULE_TYPE_FOR_ALL, RULE_SIZE, RULE_ALONE };

static allot_status parse_rule(struct constraint_rule *rule, enum rule_form form, struct allot_error *err)
{
    static const char *const wanted[] = {"RE=TYPE", "[RE=]TYPE", "RE=SIZE", "RE"};
    const char *equals = form == RULE_ALONE ? NULL : strrchr(rule->text, '=');
    char label[200], *text = NULL;
    allot_status status = ALLOT_OK;
    if (form != RULE_ALONE && ((!equals && form != RULE_TYPE_FOR_ALL) || equals == rule->text))
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "--%s: '%s' is not %s", rule->option, rule->text,
                          wanted[form]);
    if (form != RULE_ALONE)
        status = parse_value(rule, equals ? equals + 1 : rule->text, form == RULE_SIZE, err);
    if (status != ALLOT_OK || (form != RULE_ALONE && !equals))
        return status;
    text = equals ? strndup(rule->text, (size_t)(equals - rule->text)) : strdup(rule->text);
    if (!text)
        return allot_fail_memory(err, strlen(rule->text), "a constraint");
    status = pattern_new(&rule->pattern, text, constraint_label(label, rule), err);
    free(text);
    return status;
}

static allot_status parse_list(struct constraint_list *list, const char *option,
                               const struct string_list *given, enum rule_form form, struct allot_error *err)
{
    list->rules = calloc(given->n + 1, sizeof *list->rules);
    if (!list->rules)
        return allot_fail_memory(err, given->n * sizeof *list->rules, "constraints");
    for (size_t i = 0; i < given->n; i++) {
        struct constraint_rule *rule = &list->rules[list->n++];
        *rule = (struct constraint_rule){.option = option, .text = given->items[i]};
        if (parse_rule(rule, form, err) != ALLOT_OK)
            return err->status;
    }
    return ALLOT_OK;
}

allot_status constraints_parse(struct constraints *c, const char *types,
                               const struct constraint_arguments *args, struct allot_error *err)
{
    const struct {
        struct constraint_list *list;
        const char *option;
        const struct string_list *given;
        enum rule_form form;
    } lists[] = {
        {&c->pins, "pin", &args->pins, RULE_TYPE},          {&c->mins, "min", &args->mins, RULE_TYPE_FOR_ALL},
        {&c->maxs, "max", &args->maxs, RULE_TYPE_FOR_ALL},  {&c->ties, "tie", &args->ties, RULE_ALONE},
        {&c->budgets, "budget", &args->budgets, RULE_SIZE},
    };
    c->compat = args->compat;
    allot_status status = type_set_parse(&c->named, types, err);
    if (status == ALLOT_OK)
        status = constraint_types(&c->allowed, types, args->compat, err);
    for (size_t i = 0; status == ALLOT_OK && i < sizeof lists / sizeof *lists; i++)
        status = parse_list(lists[i].list, lists[i].option, lists[i].given, lists[i].form, err);
    if (status != ALLOT_OK)
        constraints_release(c);
    return status;
}

static void list_release(struct constraint_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        pattern_free(list->rules[i].pattern);
    free(list->rules);
    free(list->of);
}

void constraints_release(struct constraints *c)
{
    list_release(&c->pins);
    list_release(&c->mins);
    list_release(&c->maxs);
    list_release(&c->ties);
    list_release(&c->budgets);
    free(c->tied);
    memset(c, 0, sizeof *c);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static allot_status rule_matches(const struct constraint_rule *rule, const char *name, bool *matches,
                                 struct allot_error *err)
{
    char label[200];
    enum pattern_verdict verdict = rule->pattern ? pattern_match(rule->pattern, name) : PATTERN_MATCHES;
    *matches = verdict == PATTERN_MATCHES;
    if (verdict == PATTERN_TOO_HARD)
        return allot_fail(err, ALLOT_ERR_UNSUPPORTED, "%s takes too many steps to match with tensor %s",
                          constraint_label(label, rule), name);
    return ALLOT_OK;
}

/* Every rule with every tensor, so that one that matches nothing is told from one that comes too late. */
static allot_status bind_list(struct constraint_list *list, const struct gguf_model *model,
                              bool quantizable_only, struct allot_error *err)
{
    char label[200];
    size_t n = (size_t)model->n_tensors;
    list->of = malloc((n + 1) * sizeof *list->of);
    if (!list->of)
        return allot_fail_memory(err, n * sizeof *list->of, "constraints");
    memset(list->of, -1, (n + 1) * sizeof *list->of);
    for (size_t r = 0; r < list->n; r++) {
        bool any = false, first = false, matches;
        for (size_t i = 0; i < n; i++) {
            if (quantizable_only && !gguf_tensor_quantizable(&model->tensors[i]))
                continue;
            if (rule_matches(&list->rules[r], model->tensors[i].name, &matches, err) != ALLOT_OK)
                return err->status;
            any |= matches;
            if (!matches || list->of[i] >= 0)
                continue;
            list->of[i] = (int32_t)r;
            first = true;
        }
        if (!any)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: no tensor%s matches",
                              constraint_label(label, &list->rules[r]),
                              quantizable_only ? " that can be quantized" : "");
        if (!first)
            return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: an earlier --%s matches all of its tensors",
                              constraint_label(label, &list->rules[r]), list->rules[r].option);
    }
    return ALLOT_OK;
}

/* A tensor, and what a --tie caught of its name. */
struct caught {
    char *key;
    int32_t tensor;
};

static int by_key(const void *a, const void *b)
{
    const struct caught *x = a, *y = b;
    const int order = strcmp(x->key, y->key);
    return order ? order : (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* The number of a tensor's group: its first tensor's. */
static int32_t group_of(const int32_t *tied, int32_t tensor)
{
    while (tied[tensor] != tensor)
        tensor = tied[tensor];
    return tensor;
}

static void join(int32_t *tied, int32_t a, int32_t b)
{
    const int32_t x = group_of(tied, a), y = group_of(tied, b);
    tied[x > y ? x : y] = x < y ? x : y;
}

/* Tensors of equal captures are joined; a tensor may be in several groups, which are then one. */
static allot_status tie_rule(int32_t *tied, const struct constraint_rule *rule,
                             const struct gguf_model *model, struct caught *caught, struct allot_error *err)
{
    char label[200];
    size_t n = 0;
    bool matches;
    allot_status status = ALLOT_OK;
    for (int64_t i = 0; status == ALLOT_OK && i < model->n_tensors; i++) {
        const char *name = model->tensors[i].name;
        struct strbuf key = {0};
        if (!gguf_tensor_quantizable(&model->tensors[i]))
            continue;
        status = rule_matches(rule, name, &matches, err);
        if (status != ALLOT_OK || !matches)
            continue;
        strbuf_addf(&key, "%s", "");
        pattern_captures(rule->pattern, name, &key);
        status = strbuf_check(&key, err);
        if (status == ALLOT_OK)
            caught[n++] = (struct caught){key.data, (int32_t)i};
        else
            strbuf_release(&key);
    }
    if (status == ALLOT_OK && n == 0)
        status = allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: no tensor that can be quantized matches",
                            constraint_label(label, rule));
    if (status == ALLOT_OK)
        qsort(caught, n, sizeof *caught, by_key);
    for (size_t k = 1; status == ALLOT_OK && k < n; k++)
        if (strcmp(caught[k - 1].key, caught[k].key) == 0)
            join(tied, caught[k - 1].tensor, caught[k].tensor);
    for (size_t k = 0; k < n; k++)
        free(caught[k].key);
    return status;
}

static allot_status bind_ties(struct constraints *c, const struct gguf_model *model, struct allot_error *err)
{
    const size_t n = (size_t)model->n_tensors + 1;
    struct caught *caught = calloc(n, sizeof *caught);
    bool *shared = calloc(n, sizeof *shared);
    allot_status status = ALLOT_OK;
    c->tied = calloc(n, sizeof *c->tied);
    if (!caught || !shared || !c->tied)
        status = allot_fail_memory(err, n * sizeof *caught, "constraints");
    for (size_t i = 0; status == ALLOT_OK && i < n; i++)
        c->tied[i] = (int32_t)i;
    for (size_t r = 0; status == ALLOT_OK && r < c->ties.n; r++)
        status = tie_rule(c->tied, &c->ties.rules[r], model, caught, err);
    for (size_t i = 0; status == ALLOT_OK && i + 1 < n; i++) {
        c->tied[i] = group_of(c->tied, (int32_t)i);
        shared[c->tied[i]] |= c->tied[i] != (int32_t)i;
    }
    for (size_t i = 0; status == ALLOT_OK && i + 1 < n; i++)
        if (!shared[c->tied[i]])
            c->tied[i] = -1;
    free(caught);
    free(shared);
    return status;
}

allot_status constraints_bind(struct constraints *c, const struct gguf_model *model, struct allot_error *err)
{
    struct constraint_list *const lists[] = {&c->pins, &c->mins, &c->maxs};
    allot_status status = bind_list(&c->budgets, model, false, err);
    for (size_t i = 0; status == ALLOT_OK && i < sizeof lists / sizeof *lists; i++)
        status = bind_list(lists[i], model, true, err);
    return status == ALLOT_OK ? bind_ties(c, model, err) : status;
}

const struct constraint_rule *constraint_rule_of(const struct constraint_list *list, int64_t tensor)
{
    return list->of[tensor] < 0 ? NULL : &list->rules[list->of[tensor]];
}

bool constraint_pinned(const struct constraints *c, const struct gguf_model *model, int64_t tensor,
                       enum ggml_type *type, bool *fallback)
{
    const struct constraint_rule *rule = constraint_rule_of(&c->pins, tensor);
    if (!rule)
        return false;
    *type = recipe_written_type(rule->type, &model->tensors[tensor]);
    *fallback = *type != rule->type;
    return true;
}
