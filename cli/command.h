/* command.h - what a subcommand declares about itself.  SPDX-License-Identifier: MIT */
#ifndef ALLOT_CLI_COMMAND_H
#define ALLOT_CLI_COMMAND_H

#include "options.h"

/* The first member of every command's arguments. */
struct common_arguments {
    bool help, json, quiet;
    int64_t threads; /* 0: one per processor */
    const char *archive;
    struct string_list operands; /* what is no option, in order */
    struct string_list given;    /* the names of the options on the command line */
};

enum { COMMAND_SETS = 8 };

struct command {
    const char *name;
    const char *synopsis;    /* what follows the name */
    const char *summary;     /* a few words for the list of commands */
    const char *description; /* paragraphs for the command's own help */
    const struct option_set
        *options[COMMAND_SETS]; /* up to the first NULL; what all commands share comes on top */
    size_t arguments_size;
    size_t min_operands, max_operands;
    /* NULL, or checks what rows cannot say; its failure is a usage error (exit 2). */
    allot_status (*check)(const void *arguments, struct allot_error *err);
    /* Prints results to stdout. Exit 0, 130 when interrupted, else 1 with err's line. */
    allot_status (*run)(const void *arguments, const struct allot_progress *progress,
                        struct allot_error *err);
};

/* Ends the progress bar, if any, so that results can be printed. */
void command_end_progress(const struct allot_progress *progress);

extern const struct command command_inspect, command_imatrix, command_cost, command_plan, command_quantize,
    command_measure, command_verify, command_validate, command_speed, command_learn, command_search,
    command_report, command_archive, command_replay;

#endif
