/* stored.h - costs of one set, as the archive gives them back.  SPDX-License-Identifier: MIT
 *
 * Of methods that keep no sample values. */
#ifndef TESTS_COST_STORED_H
#define TESTS_COST_STORED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "archive/archive.h"

struct stored {
    size_t n;
    struct stored_row {
        char tensor[64], type[16];
        double cost, std_err;
        int64_t bytes;
        bool feasible;
    } rows[600];
};

/* For archive_cost_each; rows can be compared by their bytes. */
static inline bool keep_row(void *user, const char *tensor, const struct archive_cost *cost)
{
    struct stored *s = user;
    assert_true(s->n < sizeof s->rows / sizeof *s->rows);
    struct stored_row *r = &s->rows[s->n++];
    memset(r, 0, sizeof *r);
    snprintf(r->tensor, sizeof r->tensor, "%s", tensor);
    snprintf(r->type, sizeof r->type, "%s", cost->type);
    r->cost = cost->cost;
    r->std_err = cost->std_err;
    r->bytes = cost->bytes;
    r->feasible = cost->feasible;
    assert_int_equal(cost->n_u, 0);
    return false;
}

#endif
