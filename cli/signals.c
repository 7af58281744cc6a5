/* signals.c - a request to stop that long jobs can see.  SPDX-License-Identifier: MIT */
#include "signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

static volatile sig_atomic_t stop_requests;

static void on_stop(int signal_number)
{
    (void)signal_number;
    if (stop_requests) {
        file_remove_temporaries();
        _exit(130);
    }
    stop_requests = 1;
}

/* A mapped file that got shorter, or whose disk fails, has pages that cannot be read. */
static void on_lost_page(int signal_number)
{
    static const char line[] =
        "allot: an input file was cut short, or its disk failed, while it was being read\n";
    static atomic_flag reported = ATOMIC_FLAG_INIT;
    (void)signal_number;
    while (atomic_flag_test_and_set(&reported))
        pause(); /* another thread ends the process */
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    file_remove_temporaries();
    _exit(EXIT_FAILURE);
}

void signals_install(void)
{
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction old;
        /* What the parent ignores (nohup) stays ignored. */
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    action.sa_handler = on_lost_page;
    sigaction(SIGBUS, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
}

bool signals_stop_requested(void)
{
    return stop_requests != 0;
}
