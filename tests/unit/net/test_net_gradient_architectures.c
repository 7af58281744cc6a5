/* test_net_gradient_architectures.c - gradients of every architecture against central differences.
 * SPDX-License-Identifier: MIT
 *
 * The experts that a token takes change by leaps, across which there is no gradient: steps are made so small
 * that none is crossed. */
#include "architecture_cases.h"
#include "folder.h"
#include "gradient.h"

enum { N_SEQS = 2, N_CTX = 24, MAX_LAYERS = 8 };

/* Gradients, and what passes through routers and experts. */
struct routed {
    struct bench bench;
    float *inputs[MAX_LAYERS];          /* (n, n_embd): of the router, and so of the experts */
    int64_t n_taken[MAX_LAYERS];        /* pairs of token and expert */
    int64_t n_experts_busy[MAX_LAYERS]; /* experts that some token takes */
};

static bool is_called(const struct gguf_tensor *t, const char *what)
{
    return strstr(t->name, what) != NULL;
}

static allot_status keep_input(void *user, const struct net_input *input, struct allot_error *e)
{
    (void)e;
    struct routed *r = user;
    size_t n_bytes = sizeof(float) * (size_t)(input->n_tokens * input->n_in);
    if (!is_called(input->tensor, ".ffn_gate_inp.weight"))
        return ALLOT_OK;
    assert_int_equal(input->n_tokens, r->bench.n);
    r->inputs[input->tensor->layer] = malloc(n_bytes);
    memcpy(r->inputs[input->tensor->layer], input->x, n_bytes);
    return ALLOT_OK;
}

/* Positions rise, and the inputs of an expert are the router's at those positions. */
static void check_tokens(struct routed *r, const struct net_map *m)
{
    int64_t layer = m->tensor->layer, e = m->first_row / m->tensor->ne[1];
    assert_true(m->first_row + m->n_rows <= (e + 1) * m->tensor->ne[1]);
    assert_non_null(m->tokens);
    for (int64_t t = 0; t < m->n_tokens; t++) {
        assert_true(m->tokens[t] >= 0 && m->tokens[t] < r->bench.n);
        assert_true(t == 0 || m->tokens[t] > m->tokens[t - 1]);
        if (!is_called(m->tensor, ".ffn_down_exps."))
            assert_memory_equal(m->x + t * m->n_in, r->inputs[layer] + m->tokens[t] * m->n_in,
                                sizeof(float) * (size_t)m->n_in);
    }
    if (is_called(m->tensor, ".ffn_down_exps.") && m->first_row % m->tensor->ne[1] == 0) {
        r->n_taken[layer] += m->n_tokens;
        r->n_experts_busy[layer]++;
    }
}

static allot_status take_routed_map(void *user, const struct net_map *m, struct allot_error *e)
{
    if (strstr(m->tensor->name, "_exps.") != NULL)
        check_tokens(user, m);
    return take_map(user, m, e);
}

static void check_routing(const struct routed *r, const struct random_model *model)
{
    for (int il = 0; il < model->layers && model->experts > 0; il++) {
        assert_int_equal(r->n_taken[il], r->bench.n * model->used);
        assert_true(r->n_experts_busy[il] <= model->experts - model->idle_expert);
    }
}

static int check_case(const struct architecture_case *c)
{
    static struct routed r;
    struct bench *b = &r.bench;
    const char *path = in_folder("case.gguf");
    assert_true(random_model_write(path, &c->model));
    memset(&r, 0, sizeof r);
    bench_open(b, path, N_SEQS, N_CTX);
    b->observer.input = keep_input;
    b->observer.map = take_routed_map;
    b->move = 0.02;
    bench_gradients(b);
    check_routing(&r, &c->model);
    for (int64_t i = 0; i < b->model->n_tensors; i++)
        if (!is_rope_tensor(&b->model->tensors[i]))
            check_tensor(b, i);
    print_message("%s: %d slices, largest relative difference %.2g; %d without a gradient\n", c->name,
                  b->n_checked, b->worst, b->n_without);
    assert_true(c->model.experts > 0 ? b->n_without < b->n_checked / 4 : b->n_without == 0);
    bench_close(b);
    for (int il = 0; il < MAX_LAYERS; il++)
        free(r.inputs[il]);
    return b->n_wrong;
}

static void test_gradients(void **state)
{
    (void)state;
    int n_wrong = 0;
    for (int i = 0; i < N_ARCHITECTURE_CASES; i++)
        n_wrong += check_case(&architecture_cases[i]);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
