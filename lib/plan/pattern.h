/* pattern.h - regular expressions over tensor names.  SPDX-License-Identifier: MIT
 *
 * Unanchored, case counts. PCRE2 stands in for the ECMAScript expressions of llama-quantize (std::regex), as
 * bytes: \xHH, \uHHHH, [] and [^], unset back references and escaped letters without a meaning are read as
 * ECMAScript does; what it lacks (look-behind, inline flags, verbs, recursion, atomic groups) is refused.
 * Left as they are: PCRE2's possessive a++, which libstdc++ reads as (a+)+, and a literal brace, which
 * libstdc++ refuses. */
#ifndef ALLOT_PLAN_PATTERN_H
#define ALLOT_PLAN_PATTERN_H

#include "allot.h"
#include "base/strbuf.h"

struct pattern;

/* Errors (ALLOT_ERR_FORMAT) start with `what`, which names the expression: "WHAT is no regular expression:
 * ...". */
allot_status pattern_new(struct pattern **out, const char *text, const char *what, struct allot_error *err);
void pattern_free(struct pattern *pattern);

enum pattern_verdict {
    PATTERN_MISSES,
    PATTERN_MATCHES,
    PATTERN_TOO_HARD /* matching took too many steps and was given up */
};
enum pattern_verdict pattern_match(struct pattern *pattern, const char *name);

/* Appends what the capture groups caught in the last match of `name`, so that equal bytes mean equal
 * captures; nothing for a pattern without groups. */
void pattern_captures(const struct pattern *pattern, const char *name, struct strbuf *sb);

#endif
