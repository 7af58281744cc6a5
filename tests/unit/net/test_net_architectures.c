/* test_net_architectures.c - every architecture against libllama.  SPDX-License-Identifier: MIT
 *
 * Log-probabilities of random F32 models with the architecture's features switched on; and that each of those
 * features changes them, so that one left out shows. */
#include "architecture_cases.h"
#include "folder.h"
#include "libllama.h"

static const char *write_case(const struct random_model *model)
{
    const char *path = in_folder("case.gguf");
    assert_true(random_model_write(path, model));
    return path;
}

static void test_log_probs(void **state)
{
    (void)state;
    int n_wrong = 0;
    for (int i = 0; i < N_ARCHITECTURE_CASES; i++)
        n_wrong +=
            !agrees(architecture_cases[i].name, write_case(&architecture_cases[i].model), NULL, 2, 2e-3);
    assert_int_equal(n_wrong, 0);
}

/* The settings without the one at index; false if there is none. Says which it is. */
static bool drop_setting(char *rest, size_t size, const char *settings, int index, char dropped[static 128])
{
    char *copy = strdup(settings), *next;
    bool found = false;
    *rest = '\0';
    for (char *one = strtok_r(copy, " ", &next); one != NULL; one = strtok_r(NULL, " ", &next), index--) {
        size_t n = strlen(rest);
        if (index != 0) {
            snprintf(rest + n, size - n, "%s ", one);
        } else {
            snprintf(dropped, 128, "%s", one);
            found = true;
        }
    }
    free(copy);
    return found;
}

/* How many do not do as they should. */
static int check_settings_of(const struct architecture_case *c)
{
    char rest[512], dropped[128];
    int32_t ids[N_CTX];
    int n_wrong = 0;
    random_ids(ids, c->model.vocab);
    float *with = libllama_log_probs(write_case(&c->model), ids, NULL);
    assert_non_null(with);
    for (int i = 0; drop_setting(rest, sizeof rest, c->model.settings ? c->model.settings : "", i, dropped);
         i++) {
        struct random_model model = c->model;
        model.settings = rest;
        float *without = libllama_log_probs(write_case(&model), ids, NULL);
        struct difference d = {NAN, NAN};
        if (without != NULL)
            d = difference_of(with, without, N_CTX * c->model.vocab);
        if (dropped[0] == '!' ? d.worst != 0 : without != NULL && !(d.worst > 0.02)) {
            print_message("%s: without %s the log-probabilities differ by %.2g\n", c->name, dropped, d.worst);
            n_wrong++;
        }
        free(without);
    }
    free(with);
    return n_wrong;
}

/* Libllama itself says so: without one of a case's settings it computes something else, or nothing. */
static void test_settings_matter(void **state)
{
    (void)state;
    int n_wrong = 0;
    llama_log_set(print_nothing, NULL); /* a required setting is missed with an error */
    for (int i = 0; i < N_ARCHITECTURE_CASES; i++)
        n_wrong += check_settings_of(&architecture_cases[i]);
    llama_log_set(print_errors, NULL);
    assert_int_equal(n_wrong, 0);
}

static int set_up(void **state)
{
    llama_log_set(print_errors, NULL);
    return make_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_settings_matter),
                                       cmocka_unit_test(test_log_probs)};
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
