/* search_files.h - what a search leaves in its folder.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_SEARCH_FILES_H
#define ALLOT_CLI_SEARCH_FILES_H

#include "search.h"

/* Bytes of names that names of files keep; the others become '_'. */
bool search_name_byte(char c);

/* Makes the folder if there is none; refuses one that cannot be written to, and one where what is to be
 * written is an input. Before long work. */
allot_status search_files_check(const struct search *s, struct allot_error *err);
/* The same of the recipe of a build of this name. */
allot_status search_files_check_recipe(const struct search *s, const char *name, struct allot_error *err);
/* FOLDER/result.json; the document stays the caller's. */
allot_status search_files_document(const char *folder, const json_t *document, struct allot_error *err);
/* FOLDER/imatrix.gguf, if the importance matrix was computed here. */
allot_status search_files_imatrix(const char *folder, struct search *s, struct allot_error *err);
/* FOLDER/NAME.recipe, for llama-quantize and `allot quantize --recipe`; what a name of a file had better not
 * hold becomes '_'. */
allot_status search_files_recipe(const char *folder, const struct build *b, const struct search *s,
                                 struct allot_error *err);

#endif
