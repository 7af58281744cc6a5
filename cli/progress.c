/* progress.c - progress and remarks on stderr.  SPDX-License-Identifier: MIT */
#include "progress.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "signals.h"

static const double LINE_INTERVAL = 10.0, BAR_INTERVAL = 0.1;
/* Shorter stages are not worth a line of a log. */
static const double NOTICEABLE = 1.0;
enum { BAR_CELLS = 24 };

void progress_init(struct progress *p, bool quiet)
{
    memset(p, 0, sizeof *p);
    p->quiet = quiet;
    p->terminal = isatty(STDERR_FILENO);
}

static void clear_bar(struct progress *p)
{
    if (p->bar_shown)
        fputs("\r\033[K", stderr);
    p->bar_shown = false;
}

static const char *duration(char buf[static 24], double seconds)
{
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, 24, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(buf, 24, "%lldm%02llds", s / 60, s % 60);
    else
        snprintf(buf, 24, "%llds", s);
    return buf;
}

/* Counts as people read them: 1234 -> "1234", 12345678 -> "12.3M". */
static const char *count(char buf[static 24], double n)
{
    const char *unit = "";
    const char *units[] = {"k", "M", "G", "T"};
    for (size_t i = 0; i < 4 && n >= 10000; i++) {
        n /= 1000;
        unit = units[i];
    }
    snprintf(buf, 24, *unit || (n < 10 && n != (double)(int64_t)n) ? "%.1f%s" : "%.0f%s", n, unit);
    return buf;
}

static void draw(struct progress *p, double now)
{
    char done[24], total[24], rate[24], left[24];
    double elapsed = now - p->start;
    double speed = elapsed > 0 ? (double)p->done / elapsed : 0;
    if (p->terminal) {
        int filled = p->total > 0 ? (int)(BAR_CELLS * (double)p->done / (double)p->total) : 0;
        if (filled > BAR_CELLS)
            filled = BAR_CELLS;
        fprintf(stderr, "\r\033[K%s [%.*s%*s] ", p->stage, filled, "########################",
                BAR_CELLS - filled, "");
        p->bar_shown = true;
    } else {
        fprintf(stderr, "allot: %s: ", p->stage);
    }
    fprintf(stderr, "%s/%s", count(done, (double)p->done), count(total, (double)p->total));
    if (speed > 0) {
        fprintf(stderr, ", %s/s", count(rate, speed));
        if (p->done < p->total)
            fprintf(stderr, ", %s left", duration(left, (double)(p->total - p->done) / speed));
    }
    if (p->terminal)
        fflush(stderr);
    else
        fputc('\n', stderr);
    p->last = now;
}

void progress_finish(struct progress *p)
{
    if (p->quiet || !p->stage[0])
        return;
    clear_bar(p);
    double elapsed = seconds_now() - p->start;
    if (elapsed >= NOTICEABLE && p->done >= p->total) {
        char done[24], time_text[24];
        fprintf(stderr, "allot: %s: %s done in %s\n", p->stage, count(done, (double)p->done),
                duration(time_text, elapsed));
    }
    p->stage[0] = '\0';
}

static bool on_report(void *user, const char *stage, int64_t done, int64_t total)
{
    struct progress *p = user;
    if (!p->quiet) {
        double now = seconds_now();
        if (strncmp(p->stage, stage, sizeof p->stage - 1) != 0) {
            progress_finish(p);
            snprintf(p->stage, sizeof p->stage, "%s", stage);
            p->start = p->last = now;
        }
        p->done = done;
        p->total = total;
        if (now - p->last >= (p->terminal ? BAR_INTERVAL : LINE_INTERVAL))
            draw(p, now);
    }
    return signals_stop_requested();
}

static void on_note(void *user, const char *line)
{
    struct progress *p = user;
    if (p->quiet)
        return;
    clear_bar(p);
    fprintf(stderr, "allot: note: %s\n", line);
}

struct allot_progress progress_callbacks(struct progress *p)
{
    return (struct allot_progress){.report = on_report, .note = on_note, .user = p};
}
