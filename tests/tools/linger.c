/* linger.c - keeps an ending program alive for a second. SPDX-License-Identifier: MIT
 *
 * For LD_PRELOAD. The logger of llama.cpp's programs prints from a thread of its own and is never flushed:
 * on a busy machine llama-perplexity ends, with status 0, before its final table is out. Destructors run
 * in exit() while that thread still lives; this one gives it the time. */
#include <time.h>

__attribute__((destructor)) static void linger(void)
{
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}
