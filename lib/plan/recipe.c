/* recipe.c - llama-quantize's --tensor-type-file.  SPDX-License-Identifier: MIT */
#include "plan/recipe.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/pattern.h"

/* A recipe for the largest models has some thousand rules; this stops hostile files. */
#define MAX_RULES 100000

struct rule {
    char *text; /* of the pattern, lowercased */
    struct pattern *pattern;
    int type;
    bool used, hard;
};

struct recipe {
    struct rule *rules;
    size_t n, capacity;
};

/* The C locale's, whatever the program's is. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static allot_status compile_rule(const struct recipe *recipe, struct rule *rule, const char *path,
                                 struct allot_error *err)
{
    struct strbuf what = {0};
    allot_status status;

    strbuf_addf(&what, "recipe %s: rule %zu (%.200s)", path, recipe->n + 1, rule->text);
    status = strbuf_check(&what, err);
    if (status == ALLOT_OK)
        status = pattern_new(&rule->pattern, rule->text, what.data, err);
    strbuf_release(&what);
    return status;
}

static allot_status grow(struct recipe *recipe, struct allot_error *err)
{
    size_t capacity = recipe->capacity ? 2 * recipe->capacity : 64;
    struct rule *rules;

    if (recipe->n < recipe->capacity)
        return ALLOT_OK;
    rules = realloc(recipe->rules, capacity * sizeof *rules);
    if (!rules)
        return allot_fail_memory(err, capacity * sizeof *rules, "a recipe");
    recipe->rules = rules;
    recipe->capacity = capacity;
    return ALLOT_OK;
}

/* Parses the word [word, word + n). */
static allot_status add_rule(struct recipe *recipe, const char *word, size_t n, const char *path,
                             int (*type_by_name)(const char *name), const char *known_types,
                             struct allot_error *err)
{
    const char *equals = memchr(word, '=', n);
    size_t number = recipe->n + 1;
    int shown = n < 200 ? (int)n : 200;
    struct rule rule = {0};
    char *type_name = NULL;
    allot_status status = ALLOT_OK;

    if (!equals)
        return allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: rule %zu (%.*s) has no '='; want PATTERN=TYPE",
                          path, number, shown, word);
    if (equals == word)
        return allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: rule %zu (%.*s) has no pattern", path, number,
                          shown, word);
    if (equals + 1 == word + n)
        return allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: rule %zu (%.*s) has no type", path, number,
                          shown, word);
    if (number > MAX_RULES)
        return allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: more than %d rules", path, MAX_RULES);
    rule.text = strndup(word, (size_t)(equals - word));
    type_name = strndup(equals + 1, n - (size_t)(equals + 1 - word));
    if (!rule.text || !type_name) {
        status = allot_fail_memory(err, n, "a recipe");
        goto cleanup;
    }
    for (char *p = rule.text; *p; p++)
        *p = is_upper(*p) ? (char)(*p - 'A' + 'a') : *p;
    rule.type = type_by_name(type_name);
    if (rule.type < 0) {
        status = allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: rule %zu: unknown type '%.60s'; known are %s",
                            path, number, type_name, known_types);
        goto cleanup;
    }
    status = compile_rule(recipe, &rule, path, err);
    if (status == ALLOT_OK)
        status = grow(recipe, err);
    if (status == ALLOT_OK) {
        recipe->rules[recipe->n++] = rule;
        rule = (struct rule){0};
    }
cleanup:
    free(type_name);
    free(rule.text);
    pattern_free(rule.pattern);
    return status;
}

allot_status recipe_parse(struct recipe **out, const char *path, int (*type_by_name)(const char *name),
                          const char *known_types, struct allot_error *err)
{
    struct recipe *recipe = NULL;
    struct file_map map;
    const char *p, *end;
    allot_status status = file_map_open(&map, path, err);

    if (status)
        return status;
    recipe = calloc(1, sizeof *recipe);
    if (!recipe)
        status = allot_fail_memory(err, sizeof *recipe, "a recipe");
    if (status == ALLOT_OK && map.size > 0 && memchr(map.data, 0, map.size))
        status = allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: it holds a NUL byte; a recipe is text", path);
    p = (const char *)map.data;
    end = map.size ? p + map.size : p;
    while (status == ALLOT_OK) {
        const char *word;

        while (p < end && is_space(*p))
            p++;
        if (p == end)
            break;
        for (word = p; p < end && !is_space(*p); p++)
            ;
        status = add_rule(recipe, word, (size_t)(p - word), path, type_by_name, known_types, err);
    }
    if (status == ALLOT_OK && recipe->n == 0)
        status = allot_fail(err, ALLOT_ERR_FORMAT, "recipe %s: it holds no rule", path);
    file_map_close(&map);
    if (status)
        recipe_free(recipe);
    else
        *out = recipe;
    return status;
}

void recipe_free(struct recipe *recipe)
{
    if (!recipe)
        return;
    for (size_t i = 0; i < recipe->n; i++) {
        free(recipe->rules[i].text);
        pattern_free(recipe->rules[i].pattern);
    }
    free(recipe->rules);
    free(recipe);
}

int recipe_type(const struct recipe *recipe, const char *tensor_name)
{
    for (size_t i = 0; i < recipe->n; i++) {
        struct rule *rule = &recipe->rules[i];
        enum pattern_verdict verdict = pattern_match(rule->pattern, tensor_name);

        if (verdict == PATTERN_MATCHES) {
            rule->used = true;
            return rule->type;
        }
        rule->hard |= verdict == PATTERN_TOO_HARD;
    }
    return -1;
}

const char *recipe_hard_rule(const struct recipe *recipe)
{
    for (size_t i = 0; i < recipe->n; i++)
        if (recipe->rules[i].hard)
            return recipe->rules[i].text;
    return NULL;
}

const char *recipe_unused_rule(const struct recipe *recipe, size_t index)
{
    for (size_t i = 0; i < recipe->n; i++)
        if (!recipe->rules[i].used && index-- == 0)
            return recipe->rules[i].text;
    return NULL;
}

/* ---- Writing -------------------------------------------------------------------------------- */

static void add_escaped(struct strbuf *sb, const char *name)
{
    for (const char *p = name; *p; p++) {
        if (is_upper(*p) || is_space(*p) || *p == '=' || (unsigned char)*p < 0x20)
            strbuf_addf(sb, "\\x%02x", (unsigned char)*p);
        else if (strchr("^$\\.*+?()[]{}|", *p))
            strbuf_addf(sb, "\\%c", *p);
        else
            strbuf_add(sb, p, 1);
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static allot_status check_distinct(const char *const *names, size_t n, struct allot_error *err)
{
    const char **sorted = malloc((n + 1) * sizeof *sorted);
    allot_status status = ALLOT_OK;

    if (!sorted)
        return allot_fail_memory(err, n * sizeof *sorted, "a recipe");
    if (n > 0) {
        memcpy(sorted, names, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_text);
    }
    for (size_t i = 1; i < n && status == ALLOT_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status = allot_fail(err, ALLOT_ERR_ARGUMENT, "a recipe cannot hold tensor %s twice", sorted[i]);
    free(sorted);
    return status;
}

allot_status recipe_format(struct strbuf *sb, const char *const *names, const char *const *types, size_t n,
                           struct allot_error *err)
{
    allot_status status = check_distinct(names, n, err);

    if (status)
        return status;
    for (size_t i = 0; i < n; i++) {
        strbuf_add(sb, "^", 1);
        add_escaped(sb, names[i]);
        strbuf_addf(sb, "$=%s\n", types[i]);
    }
    return strbuf_check(sb, err);
}
