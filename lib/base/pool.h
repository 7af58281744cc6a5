/* pool.h - a fixed set of threads that share the items of a loop.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_POOL_H
#define ALLOT_BASE_POOL_H

#include "allot.h"

struct pool;

/* Starts n_threads - 1 workers (n_threads < 1: one per online processor). */
allot_status pool_new(struct pool **out, int n_threads, struct allot_error *err);
void pool_free(struct pool *pool);
int pool_threads(const struct pool *pool);

/* Calls fn(user, item, thread) once for every item in [0, n_items), items handed out one at a time
 * in increasing order, thread in [0, pool_threads); returns when all are done. The calling thread
 * works too. Not reentrant: fn must not call pool_run on the same pool. Results must not depend on
 * `thread`, which is only good for picking scratch space. */
void pool_run(struct pool *pool, int64_t n_items, void (*fn)(void *user, int64_t item, int thread),
              void *user);

#endif
