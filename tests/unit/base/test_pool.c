/* test_pool.c - every item once, whatever the number of threads.  SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/pool.h"

enum { MAX_ITEMS = 5000 };

struct job {
    atomic_int seen[MAX_ITEMS];
    int threads;
    atomic_int bad_thread;
    atomic_int running[64]; /* a thread works on one item at a time: its scratch space is its own */
};

static void visit(void *user, int64_t item, int thread)
{
    struct job *job = user;

    if (thread < 0 || thread >= job->threads || atomic_fetch_add(&job->running[thread], 1) != 0)
        atomic_store(&job->bad_thread, 1);
    atomic_fetch_add(&job->seen[item], 1);
    atomic_fetch_sub(&job->running[thread], 1);
}

static void test_every_item_once(void **state)
{
    static const int thread_counts[] = {1, 2, 3, 7, 64};
    static const int64_t item_counts[] = {0, 1, 2, 3, 63, 64, 65, MAX_ITEMS};

    (void)state;
    for (size_t t = 0; t < sizeof thread_counts / sizeof thread_counts[0]; t++) {
        struct allot_error err;
        struct pool *pool = NULL;

        assert_int_equal(pool_new(&pool, thread_counts[t], &err), ALLOT_OK);
        assert_int_equal(pool_threads(pool), thread_counts[t]);
        for (size_t c = 0; c < sizeof item_counts / sizeof item_counts[0]; c++) {
            static struct job job;

            memset(&job, 0, sizeof job);
            job.threads = thread_counts[t];
            pool_run(pool, item_counts[c], visit, &job);
            for (int64_t i = 0; i < MAX_ITEMS; i++)
                assert_int_equal(job.seen[i], i < item_counts[c]);
            assert_int_equal(job.bad_thread, 0);
        }
        pool_free(pool);
    }
}

/* Many short rounds: a worker late from one round must not take part in the next one's bookkeeping. */
static void test_many_rounds(void **state)
{
    static struct job job = {.threads = 4};
    struct allot_error err;
    struct pool *pool = NULL;

    (void)state;
    assert_int_equal(pool_new(&pool, 4, &err), ALLOT_OK);
    for (int round = 1; round <= 5000; round++) {
        pool_run(pool, 3, visit, &job);
        assert_int_equal(job.seen[0] + job.seen[1] + job.seen[2], 3 * round);
    }
    assert_int_equal(job.bad_thread, 0);
    pool_free(pool);
}

struct outer {
    struct pool *inner;
    struct job *job;
};

static void run_inner(void *user, int64_t item, int thread)
{
    struct outer *outer = user;

    (void)item;
    (void)thread;
    pool_run(outer->inner, 10, visit, outer->job);
}

/* A pool within a pool's item is fine as long as it is another one and used by one item at a time. */
static void test_nested(void **state)
{
    static struct job job = {.threads = 3};
    struct allot_error err;
    struct pool *one = NULL, *other = NULL;

    (void)state;
    assert_int_equal(pool_new(&one, 1, &err), ALLOT_OK);
    assert_int_equal(pool_new(&other, 3, &err), ALLOT_OK);
    pool_run(one, 5, run_inner, &(struct outer){other, &job});
    for (int i = 0; i < 10; i++)
        assert_int_equal(job.seen[i], 5);
    pool_free(one);
    pool_free(other);
}

static void test_limits(void **state)
{
    struct allot_error err;
    struct pool *pool = NULL;

    (void)state;
    assert_int_equal(pool_new(&pool, 1000000, &err), ALLOT_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "1000000"));
    assert_null(pool);
    assert_int_equal(pool_new(&pool, 0, &err), ALLOT_OK);
    assert_true(pool_threads(pool) >= 1);
    pool_free(pool);
    pool_free(NULL);
}

static atomic_int signals_on_workers;
static pthread_t main_thread;

static void on_signal(int number)
{
    (void)number;
    if (!pthread_equal(pthread_self(), main_thread))
        atomic_fetch_add(&signals_on_workers, 1);
}

static void signal_often(void *user, int64_t item, int thread)
{
    (void)user;
    (void)item;
    (void)thread;
    kill(getpid(), SIGUSR1);
}

/* Ctrl+C must interrupt the program's own thread, not a worker in the middle of an item. */
static void test_signals_go_to_the_caller(void **state)
{
    struct allot_error err;
    struct pool *pool = NULL;

    (void)state;
    main_thread = pthread_self();
    signal(SIGUSR1, on_signal);
    assert_int_equal(pool_new(&pool, 4, &err), ALLOT_OK);
    pool_run(pool, 2000, signal_often, NULL);
    pool_free(pool);
    signal(SIGUSR1, SIG_DFL);
    assert_int_equal(signals_on_workers, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_many_rounds),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_signals_go_to_the_caller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
