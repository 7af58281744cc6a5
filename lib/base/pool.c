/* pool.c - a fixed set of threads that share the items of a loop.  SPDX-License-Identifier: MIT */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

enum { MAX_THREADS = 4096 };

struct worker {
    pthread_t id;
    int index;
    struct pool *pool;
};

struct pool {
    int n_threads; /* the caller's included */
    struct worker *workers;
    int n_started;

    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t round; /* counts pool_run calls; a change wakes the workers */
    int n_busy;     /* workers that have not finished this round */
    bool stop;

    void (*fn)(void *user, int64_t item, int thread);
    void *user;
    int64_t n_items;
    atomic_int_least64_t next;
};

static void take_items(struct pool *pool, int thread)
{
    int64_t item;

    while ((item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->n_items)
        pool->fn(pool->user, item, thread);
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    uint64_t seen = 0;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->round == seen)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        take_items(pool, worker->index);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_busy == 0)
            pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Processors this process may use. */
static int count_processors(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

static int start_workers(struct pool *pool)
{
    sigset_t all, old;
    int rc = 0;

    /* Signals are for the program's own threads, but for the one that a thread's own reading raises. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 0; i < pool->n_threads - 1 && rc == 0; i++) {
        pool->workers[i] = (struct worker){.index = i + 1, .pool = pool};
        rc = pthread_create(&pool->workers[i].id, NULL, worker_main, &pool->workers[i]);
        pool->n_started += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

allot_status pool_new(struct pool **out, int n_threads, struct allot_error *err)
{
    struct pool *pool;
    int rc;

    if (n_threads < 1)
        n_threads = count_processors();
    if (n_threads > MAX_THREADS)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%d threads asked for, at most %d are possible", n_threads,
                          MAX_THREADS);
    pool = calloc(1, sizeof *pool);
    if (!pool)
        return allot_fail_memory(err, sizeof *pool, "the thread pool");
    pool->n_threads = n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->idle, NULL);
    pool->workers = calloc((size_t)n_threads, sizeof *pool->workers);
    if (!pool->workers) {
        pool_free(pool);
        return allot_fail_memory(err, (size_t)n_threads * sizeof *pool->workers, "the thread pool");
    }
    rc = start_workers(pool);
    if (rc) {
        pool_free(pool);
        return allot_fail(err, ALLOT_ERR_IO, "cannot start %d threads: %s", n_threads, strerror(rc));
    }
    *out = pool;
    return ALLOT_OK;
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i].id, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->idle);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->n_threads;
}

void pool_run(struct pool *pool, int64_t n_items, void (*fn)(void *user, int64_t item, int thread),
              void *user)
{
    if (pool->n_started == 0 || n_items <= 1) {
        for (int64_t item = 0; item < n_items; item++)
            fn(user, item, 0);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn;
    pool->user = user;
    pool->n_items = n_items;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->n_busy = pool->n_started;
    pool->round++;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    take_items(pool, 0);

    /* Every worker takes part in every round, if only to find it done: none can be late for the next. */
    pthread_mutex_lock(&pool->lock);
    while (pool->n_busy > 0)
        pthread_cond_wait(&pool->idle, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
