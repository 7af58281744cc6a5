/* seen_text.h - which tokens a calibration saw, kept in the archive with what came of it.
 * SPDX-License-Identifier: MIT
 *
 * Windows are kept by their SHA-256, which a set of costs names; an imatrix that was computed here is linked
 * to those that it came from. Of an imatrix of the user's nothing is known. */
#ifndef ALLOT_CLI_SEEN_TEXT_H
#define ALLOT_CLI_SEEN_TEXT_H

#include "archive/archive.h"
#include "text/text.h"

/* own: the model wrote them. */
allot_status seen_text_put(struct archive *archive, const struct text_windows *windows, bool own,
                           struct allot_error *err);
allot_status seen_text_link(struct archive *archive, const char *imatrix_sha256, const char *windows_sha256,
                            struct allot_error *err);

/* Windows by their hash; n is 0 where the archive (of an older version, say) does not have them. */
allot_status seen_text_get(struct text_windows *windows, bool *own, struct archive *archive,
                           const char *windows_sha256, struct allot_error *err);
/* Those behind an imatrix; "" if not known. */
allot_status seen_text_of_imatrix(char windows_sha256[static 65], struct archive *archive,
                                  const char *imatrix_sha256, struct allot_error *err);

/* Does a set of costs, or its imatrix if it has no text itself, come from text of the model's own? */
allot_status seen_text_is_own(bool *own, struct archive *archive, const struct archive_cost_set_info *set,
                              struct allot_error *err);

/* The largest share of a text that one calibration of a model has seen. */
struct seen_overlap {
    bool known;     /* false: the archive holds no windows of the model's calibrations */
    double share;   /* of the text's tokens, as text/overlap.h counts them */
    char what[128]; /* "fisher costs of 2026-01-31T12:00:00Z", perhaps after "the imatrix of " */
};

#define SEEN_THRESHOLD 0.02 /* larger shares are worth a remark; below lie quotations and phrases */

/* Compares windows with those of all costs of the model in the archive, and of their imatrices. */
allot_status seen_text_overlap(struct seen_overlap *out, struct archive *archive, const char *model_sha256,
                               const struct text_windows *windows, struct allot_error *err);

#endif
