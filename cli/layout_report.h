/* layout_report.h - what allot learn prints of layouts.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_LAYOUT_REPORT_H
#define ALLOT_CLI_LAYOUT_REPORT_H

#include "output.h"
#include "search/layout.h"

/* One line: name, architecture, layers, bits per weight, origin. */
void layout_print_line(const struct layout *layout);
json_t *layout_json(const struct layout *layout);

/* To stdout, as text or as one JSON document. */
allot_status layouts_report(const struct layout_list *list, bool json, struct allot_error *err);
allot_status layout_report(const struct layout *layout, bool json, struct allot_error *err);
allot_status layout_diff_report(const struct layout *a, const struct layout *b, bool json,
                                struct allot_error *err);

#endif
