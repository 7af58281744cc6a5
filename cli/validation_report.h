/* validation_report.h - a validation as text or JSON.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_VALIDATION_REPORT_H
#define ALLOT_CLI_VALIDATION_REPORT_H

#include "validation.h"

allot_status validation_print(const struct validation *v, struct allot_error *err);

#endif
