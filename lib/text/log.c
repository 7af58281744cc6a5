/* log.c - libllama's and ggml's log lines: errors kept, the rest dropped.  SPDX-License-Identifier: MIT */
#include "text/text.h"

#include "llama.h"

#include <pthread.h>
#include <string.h>

enum { LINE_MAX_BYTES = 512 };

/* The thread's first error since it last forgot: a failed load logs its cause first and then only that it
 * failed. libllama logs on the thread that calls it. */
static _Thread_local struct {
    char line[LINE_MAX_BYTES];
    size_t len;
    bool complete; /* a newline has ended the line */
    bool open;     /* continuation pieces belong to the line */
} last_error;

static void keep_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
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
    last_error.line[0] = '\0';
    last_error.len = 0;
    last_error.complete = last_error.open = false;
}

/* Behind `prefix`, if the line starts with it. */
static const char *skip(const char *line, const char *prefix)
{
    size_t len = strlen(prefix);
    return strncmp(line, prefix, len) == 0 ? line + len : line;
}

/* Behind the "function: " that libllama puts before its messages. */
static const char *skip_function(const char *line)
{
    const char *colon = strstr(line, ": ");
    return colon != NULL && strcspn(line, " ") > (size_t)(colon - line) ? colon + 2 : line;
}

const char *text_last_llama_error(void)
{
    /* libllama says once per level that it failed: "error loading model: error loading model vocabulary:
     * ...". */
    const char *line = skip_function(last_error.line);
    const char *cause = skip(line, "error loading model: ");
    return cause == line ? line : skip(skip_function(cause), "error loading model ");
}
