/* test_grids.c - the neighbours of every code word, by the rule.  SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/grids.h"

enum { MOST_POINTS = 2048 };

static const struct {
    enum ggml_type type;
    int n_points, size, values, distances;
    bool shortens;
} expected[] = {
    {GGML_TYPE_IQ1_S, 2048, 8, 3, 3, true},  {GGML_TYPE_IQ1_M, 2048, 8, 3, 3, true},
    {GGML_TYPE_IQ2_XXS, 256, 8, 3, 2, true}, {GGML_TYPE_IQ2_XS, 512, 8, 3, 2, true},
    {GGML_TYPE_IQ2_S, 1024, 8, 3, 1, false}, {GGML_TYPE_IQ3_XXS, 256, 4, 8, 2, true},
    {GGML_TYPE_IQ3_S, 512, 4, 8, 3, true},
};

static int code(unsigned word, int bits, int i)
{
    return (int)(word >> (bits * i) & ((1u << bits) - 1));
}

static bool occurs(unsigned word, const struct quant_grid *g)
{
    for (int i = 0; i < g->size; i++)
        if (code(word, g->bits, i) >= g->values)
            return false;
    return true;
}

/* Distance, then index. */
struct neighbour {
    int distance, point;
};

static int order(const void *left, const void *right)
{
    const struct neighbour *l = left, *r = right;
    return l->distance != r->distance ? l->distance - r->distance : l->point - r->point;
}

static int sorted_neighbours(struct neighbour *list, unsigned word, const struct quant_grid *g, int distances)
{
    for (int p = 0; p < g->n_points; p++) {
        list[p] = (struct neighbour){0, p};
        for (int i = 0; i < g->size; i++) {
            int d = 2 * (code(word, g->bits, i) - code(g->points[p], g->bits, i));
            list[p].distance += d * d;
        }
    }
    qsort(list, (size_t)g->n_points, sizeof *list, order);
    int n = 1;
    for (; n < g->n_points; n++)
        if (list[n].distance != list[n - 1].distance && --distances == 0)
            break;
    return n;
}

static void check_word(unsigned word, const struct quant_grid *g, int distances)
{
    static struct neighbour list[MOST_POINTS];
    const int n = sorted_neighbours(list, word, g, distances);
    const uint16_t *words = grid_list(g, g->map[word]);
    const int steps = grid_steps(g->map[word]);
    assert_true(list[0].distance > 0);
    assert_int_equal(steps, (n + GRID_STEP - 1) / GRID_STEP);
    for (int i = 0; i < (n + GRID_VECTOR - 1) / GRID_VECTOR * GRID_VECTOR; i++)
        assert_int_equal(words[i], g->points[list[i < n ? i : n - 1].point]);
}

/* Whether each coordinate of b is that of a or c, or between them. */
static bool between(unsigned a, unsigned b, unsigned c, const struct quant_grid *g)
{
    for (int i = 0; i < g->size; i++) {
        const int x = code(a, g->bits, i), y = code(b, g->bits, i), z = code(c, g->bits, i);
        if ((y < x && y < z) || (y > x && y > z))
            return false;
    }
    return true;
}

/* A neighbour is left out if and only if one before it, left out or not, is between it and the word. */
static void check_short_list(unsigned word, const struct quant_grid *g)
{
    const uint16_t *all = grid_list(g, g->map[word]), *few = grid_list(g, g->map[word + GRID_SHORT]);
    const int n = grid_steps(g->map[word]) * GRID_STEP, n_few = grid_steps(g->map[word + GRID_SHORT]);
    int at = 0;
    for (int k = 0; k < n; k++) {
        bool needed = true;
        for (int j = 0; j < k && needed; j++)
            needed = !between(word, all[j], all[k], g);
        if (needed)
            assert_int_equal(few[at++], all[k]);
    }
    assert_int_equal(n_few, (at + GRID_STEP - 1) / GRID_STEP);
    for (int k = at; k % GRID_VECTOR != 0; k++)
        assert_int_equal(few[k], few[at - 1]);
}

static void every_word(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
        const struct quant_grid *g = quant_grid_of(expected[k].type);
        assert_non_null(g);
        assert_int_equal(g->n_points, expected[k].n_points);
        assert_int_equal(g->size, expected[k].size);
        assert_int_equal(g->values, expected[k].values);
        int on_grid = 0;
        const unsigned step = g->n_points == MOST_POINTS ? 7 : 1; /* sorting 2048 points takes long */
        for (unsigned word = 0; word < 1u << (g->bits * g->size); word++) {
            if (!occurs(word, g))
                continue;
            if (g->map[word] >= 0) {
                assert_int_equal(g->points[g->map[word]], word);
                if (expected[k].shortens)
                    assert_int_equal(g->map[word + GRID_SHORT], g->map[word]);
                on_grid++;
            } else if (word % step == 0) {
                check_word(word, g, expected[k].distances);
                if (expected[k].shortens)
                    check_short_list(word, g);
            }
        }
        assert_int_equal(on_grid, g->n_points); /* no point occurs twice */
    }
}

static void one_grid_for_all(void **state)
{
    (void)state;
    assert_ptr_equal(quant_grid_of(GGML_TYPE_IQ1_M), quant_grid_of(GGML_TYPE_IQ1_S));
    assert_ptr_equal(quant_grid_of(GGML_TYPE_IQ2_S), quant_grid_of(GGML_TYPE_IQ2_S));
    assert_null(quant_grid_of(GGML_TYPE_Q4_K));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word),
        cmocka_unit_test(one_grid_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
