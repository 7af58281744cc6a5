/* log.c - libllama's and ggml's log lines: errors kept, the rest dropped.  SPDX-License-Identifier: MIT */
#include "text/text.h"

#include "llama.h"

#include <pthread.h>
#include <string.h>

enum { LINE_MAX_BYTES = 512 };

/* The first error since the last forget: a failed load logs its cause first and then only that it failed. */
static struct {
    pthread_mutex_t lock;
    char line[LINE_MAX_BYTES];
    size_t len;
    bool complete; /* a newline has ended the line */
    bool open;     /* continuation pieces belong to the line */
} last_error = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    pthread_mutex_lock(&last_error.lock);
    if (level == GGML_LOG_LEVEL_ERROR && last_error.len == 0)
        last_error.open = true;
    else if (level != GGML_LOG_LEVEL_CONT)
        last_error.open = false;
    if (last_error.open && !last_error.complete) {
        for (const char *c = text; *c != '\0' && !last_error.complete; c++) {
            if (*c == '\n')
                last_error.complete = last_error.len > 0;
            else if (last_error.len < LINE_MAX_BYTES - 1)
                last_error.line[last_error.len++] = *c;
        }
        last_error.line[last_error.len] = '\0';
    }
    pthread_mutex_unlock(&last_error.lock);
}

static void start_llama(void)
{
    llama_log_set(keep_errors, NULL);
    llama_backend_init();
}

void text_capture_llama_log(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_llama);
}

void text_forget_llama_error(void)
{
    pthread_mutex_lock(&last_error.lock);
    last_error.line[0] = '\0';
    last_error.len = 0;
    last_error.complete = last_error.open = false;
    pthread_mutex_unlock(&last_error.lock);
}

const char *text_last_llama_error(void)
{
    static _Thread_local char copy[LINE_MAX_BYTES];
    pthread_mutex_lock(&last_error.lock);
    const char *line = last_error.line;
    /* Drop the "function: " that libllama puts before its messages. */
    const char *colon = strstr(line, ": ");
    if (colon != NULL && strcspn(line, " ") > (size_t)(colon - line))
        line = colon + 2;
    strcpy(copy, line);
    pthread_mutex_unlock(&last_error.lock);
    return copy;
}
