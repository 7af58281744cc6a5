/* test_recipe.c - recipes: hostile files, first match, round trips, and what llama-quantize makes of them.
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "plan/recipe.h"

static char path[300];

static const char *const type_names[] = {"Q2_K", "Q4_K", "Q6_K", "Q8_0"};
enum { Q2_K, Q4_K, Q6_K, Q8_0, N_TYPES };

static int type_by_name(const char *name)
{
    for (int i = 0; i < N_TYPES; i++)
        if (strcasecmp(type_names[i], name) == 0)
            return i;
    return -1;
}

static void write_file(const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static allot_status parse(struct recipe **out, const char *bytes, size_t n, struct allot_error *err)
{
    write_file(bytes, n);
    return recipe_parse(out, path, type_by_name, "Q2_K, Q4_K, Q6_K, Q8_0", err);
}

/* ---- Files that are no recipes -------------------------------------------------------------------- */

static void test_refused(void **state)
{
#define BYTES(s) s, sizeof s - 1
    static const struct {
        const char *bytes;
        size_t n;
        const char *message; /* besides the file's name */
    } rows[] = {
        {BYTES(""), "no rule"},
        {BYTES(" \n\t\r\n"), "no rule"},
        {BYTES("blk.0"), "rule 1 (blk.0) has no '='"},
        {BYTES("a=Q4_K\nb=Q4_K blk.0 c=Q4_K"), "rule 3 (blk.0) has no '='"},
        {BYTES("=Q4_K"), "rule 1 (=Q4_K) has no pattern"},
        {BYTES("x="), "rule 1 (x=) has no type"},
        {BYTES("x = Q4_K"), "rule 1 (x) has no '='"},
        {BYTES("# a comment"), "rule 1 (#) has no '='"},
        {BYTES("x=Q6_0"), "rule 1: unknown type 'Q6_0'; known are Q2_K, Q4_K, Q6_K, Q8_0"},
        {BYTES("a=b=Q4_K"), "unknown type 'b=Q4_K'"},
        {BYTES("a=Q4_K\0b=Q4_K"), "NUL"},
        {BYTES("\x7f"
               "ELF\x02\x01\x01\xff\xfe"),
         "has no '='"},
        {BYTES("a=Q4_K (=Q4_K"), "rule 2 (() is no regular expression: missing closing parenthesis"},
        {BYTES("[a=Q4_K"), "rule 1 ([a) is no regular expression"},
        {BYTES("*a=Q4_K"), "rule 1 (*a) is no regular expression"},
        {BYTES("a\\=Q4_K"), "rule 1 (a\\) is no regular expression"},
        {BYTES("(?i)a=Q4_K"), "ECMAScript"},
        {BYTES("(?>a)=Q4_K"), "ECMAScript"},
        {BYTES("(*FAIL)a=Q4_K"), "nothing to repeat"},
        {BYTES("(?:(?R))a=Q4_K"), "ECMAScript"},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct recipe *recipe = NULL;
        struct allot_error err = {0};
        allot_status status = parse(&recipe, rows[r].bytes, rows[r].n, &err);

        if (status != ALLOT_ERR_FORMAT || recipe || !strstr(err.message, rows[r].message) ||
            !strstr(err.message, path) || strpbrk(err.message, "\n\x7f\x01"))
            fail_msg("row %zu: status %d: %s", r, status, err.message);
    }
}

static void test_huge(void **state)
{
    enum { N = 10 * 1000 * 1000 };
    char *bytes = malloc(N);
    struct recipe *recipe = NULL;
    struct allot_error err = {0};

    (void)state;
    assert_non_null(bytes);
    memset(bytes, 'a', N);
    assert_int_equal(parse(&recipe, bytes, N, &err), ALLOT_ERR_FORMAT); /* no '=' */
    memcpy(bytes + N - 5, "=Q4_K", 5);
    assert_int_equal(parse(&recipe, bytes, N, &err), ALLOT_ERR_FORMAT); /* a pattern beyond all bounds */
    memset(bytes, '(', N - 5);
    assert_int_equal(parse(&recipe, bytes, N, &err), ALLOT_ERR_FORMAT);
    memcpy(bytes, "x=", 2);
    assert_int_equal(parse(&recipe, bytes, N, &err), ALLOT_ERR_FORMAT); /* a type name likewise */
    for (size_t i = 0; i + 8 <= N; i += 8)
        memcpy(bytes + i, "ab=Q4_K\n", 8);
    assert_int_equal(parse(&recipe, bytes, N, &err), ALLOT_ERR_FORMAT); /* too many rules */
    assert_null(recipe);
    free(bytes);
}

static void test_absent(void **state)
{
    struct recipe *recipe = NULL;
    struct allot_error err = {0};

    (void)state;
    assert_int_equal(recipe_parse(&recipe, "/absent/recipe", type_by_name, "", &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "/absent/recipe: no such file"));
    assert_int_equal(recipe_parse(&recipe, folder, type_by_name, "", &err), ALLOT_ERR_IO);
    assert_non_null(strstr(err.message, "folder"));
}

/* ---- Matching --------------------------------------------------------------------------------------- */

static void test_matches(void **state)
{
    /* What llama-quantize (libstdc++'s std::regex) answers for the same rules. */
    static const struct {
        const char *rules, *name;
        int type;
    } rows[] = {
        {"blk.1=Q4_K", "blk.11.attn_k.weight", Q4_K}, /* unanchored */
        {"^blk\\.1\\.=Q4_K", "blk.11.attn_k.weight", -1},
        {"ffn_up=Q4_K", "blk.0.ffn_up_exps.weight", Q4_K},
        {"ffn_up\\.=Q4_K", "blk.0.ffn_up_exps.weight", -1},
        {"attn=Q4_K attn_k=Q8_0", "blk.0.attn_k.weight", Q4_K}, /* the first wins */
        {"attn_k=q8_0\nattn=q4_k", "blk.0.attn_k.weight", Q8_0},
        {"ATTN_K=Q8_0", "blk.0.attn_k.weight", Q8_0}, /* patterns are lowercased */
        {"attn=Q4_K", "blk.0.ATTN.weight", -1},       /* names are not */
        {"ATTN=Q4_K", "blk.0.ATTN.weight", -1},
        {"blk\\.\\D+=Q4_K", "blk.77", Q4_K}, /* \D becomes \d */
        {"blk\\.(0|1|2)\\.=Q6_K", "blk.2.x", Q6_K},
        {"blk\\.(?:[4-9]|1[0-5])\\.=Q6_K", "blk.12.x", Q6_K},
        {"blk\\.(?!1)\\d=Q6_K", "blk.1.x", -1},
        {"[]a=Q4_K b=Q6_K", "]a b", Q6_K}, /* an empty class matches nothing */
        {"\\x61b=Q4_K", "ab", Q4_K},
        {"\\u0061b=Q4_K", "ab", Q4_K},
        {"\\ha=Q4_K", "ha", Q4_K}, /* no escape of ECMAScript: the letter itself */
        {"\\ha=Q4_K", " a", -1},
        {"a.c=Q4_K", "a\nc", -1},
        {"weight$=Q4_K", "x.weight\n", -1},
        {"a=Q4_K", "", -1},
        {"\xc5\xbe=Q4_K", "\xc5\xbe", Q4_K}, /* bytes, valid text or not */
        {"\xff=Q4_K", "\xff", Q4_K},
    };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct recipe *recipe = NULL;
        struct allot_error err = {0};
        int type;

        if (parse(&recipe, rows[r].rules, strlen(rows[r].rules), &err))
            fail_msg("row %zu: %s", r, err.message);
        type = recipe_type(recipe, rows[r].name);
        if (type != rows[r].type)
            fail_msg("row %zu: %s on %s: %d", r, rows[r].rules, rows[r].name, type);
        recipe_free(recipe);
    }
}

static void test_unused(void **state)
{
    static const char rules[] = "attn_k=Q4_K attn=Q6_K attn_v=Q8_0 blk\\.7=Q2_K";
    struct recipe *recipe = NULL;
    struct allot_error err = {0};

    (void)state;
    assert_int_equal(parse(&recipe, rules, strlen(rules), &err), ALLOT_OK);
    assert_string_equal(recipe_unused_rule(recipe, 0), "attn_k");
    assert_string_equal(recipe_unused_rule(recipe, 3), "blk\\.7");
    assert_null(recipe_unused_rule(recipe, 4));
    recipe_type(recipe, "blk.0.attn_k");
    recipe_type(recipe, "blk.0.attn_v"); /* taken by attn, not by its own rule */
    assert_string_equal(recipe_unused_rule(recipe, 0), "attn_v");
    assert_string_equal(recipe_unused_rule(recipe, 1), "blk\\.7");
    assert_null(recipe_unused_rule(recipe, 2));
    assert_null(recipe_hard_rule(recipe));
    recipe_free(recipe);
}

/* Nested repetition needs 2^n steps; it must end, and say so. */
static void test_backtracking(void **state)
{
    static const char rules[] = "^(a+)+$=Q4_K ^(a|aa|b)*c$=Q6_K .*z=Q8_0";
    char name[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaz";
    struct recipe *recipe = NULL;
    struct allot_error err = {0};

    (void)state;
    assert_int_equal(parse(&recipe, rules, strlen(rules), &err), ALLOT_OK);
    assert_null(recipe_hard_rule(recipe));
    assert_int_equal(recipe_type(recipe, name), Q8_0);
    assert_string_equal(recipe_hard_rule(recipe), "^(a+)+$");
    recipe_free(recipe);
}

/* ---- Writing ---------------------------------------------------------------------------------------- */

static const char *const names[] = {
    "blk.1.ffn_up.weight",
    "blk.11.ffn_up.weight",
    "blk.1.ffn_up_exps.weight",
    "blk.1.FFN_UP.weight",
    "blk.1.ffn=up.weight",
    "blk.1.ffn up.weight",
    "blk.1.ffn\tup.weight",
    "blk.1.ffn\nup.weight",
    "blkx1xffn_upxweight",
    "output.weight",
    "per_layer_output.weight",
    "a(b)[c]{1}|d^e$f*g+h?\\i",
    "a(b)[c]{1}|d^e$f*g+h?\\\\",
    "\xc5\xbd"
    "eljko",
    "\xff\x01\x7f",
    "-",
    "(?i)x",
    "\\x41",
    "A",
    "",
};
enum { N_NAMES = sizeof names / sizeof names[0] };

/* Every name gets its own type back and every rule is needed. */
static void test_round_trip(void **state)
{
    const char *types[N_NAMES];
    struct strbuf text = {0};
    struct recipe *recipe = NULL;
    struct allot_error err = {0};

    (void)state;
    for (size_t i = 0; i < N_NAMES; i++)
        types[i] = type_names[(i * 7 + i / 4) % N_TYPES];
    assert_int_equal(recipe_format(&text, names, types, N_NAMES, &err), ALLOT_OK);
    if (parse(&recipe, text.data, text.len, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < N_NAMES; i++) {
        if (recipe_type(recipe, names[i]) != type_by_name(types[i]))
            fail_msg("name %zu (%s) got another's type", i, names[i]);
        if (i + 1 < N_NAMES && !recipe_unused_rule(recipe, N_NAMES - 2 - i))
            fail_msg("name %zu (%s) used another's rule", i, names[i]);
    }
    assert_null(recipe_unused_rule(recipe, 0));
    assert_null(recipe_hard_rule(recipe));
    recipe_free(recipe);
    strbuf_release(&text);
}

static void test_form(void **state)
{
    static const char *const two[] = {"blk.1.ffn_up.weight", "A=b"}, *const types[] = {"Q4_K", "Q8_0"},
                             *const twice[] = {"a", "a"};
    struct strbuf text = {0};
    struct allot_error err = {0};

    (void)state;
    assert_int_equal(recipe_format(&text, two, types, 2, &err), ALLOT_OK);
    assert_string_equal(text.data, "^blk\\.1\\.ffn_up\\.weight$=Q4_K\n^\\x41\\x3db$=Q8_0\n");
    assert_int_equal(recipe_format(&text, twice, types, 2, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "tensor a twice"));
    strbuf_release(&text);
}

/* ---- The stock tool --------------------------------------------------------------------------------- */

/* Runs llama-quantize --dry-run with the rules in `path` (or none) and calls row for each quantized tensor.
 */
static int dry_run(bool with_rules, void (*row)(void *user, const char *name, const char *type), void *user)
{
    char command[2048], line[1024], name[256], type[32], *arrow;
    int n = 0;
    FILE *pipe;

    snprintf(command, sizeof command,
             "'%s/llama-quantize' --dry-run %s '%s' '%s/tiny-llama-bf16.gguf' Q4_0 2>&1", STOCK_TOOLS_DIR,
             with_rules ? "--tensor-type-file" : "", with_rules ? path : "--pure", TEST_DATA_DIR);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    while (fgets(line, sizeof line, pipe)) {
        arrow = strstr(line, " -> ");
        if (line[0] == '[' && arrow && sscanf(line, "[ %*d/ %*d] %255s", name) == 1 &&
            sscanf(strchr(arrow, '('), "(%31[^)])", type) == 1) {
            row(user, name, type);
            n++;
        }
    }
    assert_int_equal(pclose(pipe), 0);
    return n;
}

struct stock {
    char names[128][256];
    const char *name_list[128], *types[128];
    int n;
    struct recipe *recipe;
};

static void collect_name(void *user, const char *name, const char *type)
{
    struct stock *stock = user;

    (void)type;
    assert_true(stock->n < 128);
    snprintf(stock->names[stock->n], sizeof stock->names[0], "%s", name);
    stock->name_list[stock->n] = stock->names[stock->n];
    stock->types[stock->n] = type_names[(stock->n * 5 + 1) % N_TYPES];
    stock->n++;
}

static void check_type(void *user, const char *name, const char *type)
{
    struct stock *stock = user;

    if (recipe_type(stock->recipe, name) != type_by_name(type))
        fail_msg("llama-quantize makes %s of %s, the recipe says otherwise", type, name);
}

static void test_stock_tool(void **state)
{
    static const char loose[] = "ffn_down=Q8_0 blk\\.[0-2]\\.ATTN_(k|q)=Q2_K \\.1\\.=Q6_K ^token=Q4_K .=q2_k";
    static struct stock stock;
    struct strbuf text = {0};
    struct allot_error err = {0};

    (void)state;
    if (access(STOCK_TOOLS_DIR "/llama-quantize", X_OK) != 0)
        skip();
    assert_true(dry_run(false, collect_name, &stock) > 40);
    assert_int_equal(recipe_format(&text, stock.name_list, stock.types, (size_t)stock.n, &err), ALLOT_OK);
    assert_int_equal(parse(&stock.recipe, text.data, text.len, &err), ALLOT_OK);
    for (int i = 0; i < stock.n; i++)
        assert_int_equal(recipe_type(stock.recipe, stock.names[i]), type_by_name(stock.types[i]));
    assert_int_equal(dry_run(true, check_type, &stock), stock.n);
    recipe_free(stock.recipe);

    /* Rules as people write them are read alike, too. */
    assert_int_equal(parse(&stock.recipe, loose, strlen(loose), &err), ALLOT_OK);
    assert_int_equal(dry_run(true, check_type, &stock), stock.n);
    recipe_free(stock.recipe);
    strbuf_release(&text);
}

static int start(void **state)
{
    if (make_folder(state))
        return -1;
    snprintf(path, sizeof path, "%s/a recipe.txt", folder);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_huge),   cmocka_unit_test(test_absent),
        cmocka_unit_test(test_matches),    cmocka_unit_test(test_unused), cmocka_unit_test(test_backtracking),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_form),   cmocka_unit_test(test_stock_tool),
    };

    return cmocka_run_group_tests(tests, start, finish);
}
