/* main.c - the allot program: one table of commands; finds, parses, runs, reports.
 * SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "progress.h"
#include "signals.h"

enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130, MAX_SETS = COMMAND_SETS + 1 };

static const struct command *const commands[] = {
    &command_inspect, &command_imatrix, &command_cost,     &command_plan,   &command_quantize,
    &command_measure, &command_verify,  &command_validate, &command_speed,  &command_learn,
    &command_search,  &command_report,  &command_archive,  &command_replay,
};
static const size_t n_commands = sizeof commands / sizeof *commands;

static const struct option_row common_rows[] = {
    {"json", 0, NULL, OPTION_FLAG, offsetof(struct common_arguments, json), NULL, 0,
     "print results as one JSON document"},
    {"quiet", 0, NULL, OPTION_FLAG, offsetof(struct common_arguments, quiet), NULL, 0,
     "no progress and no remarks on standard error, only errors"},
    {"threads", 't', "N", OPTION_INT, offsetof(struct common_arguments, threads), "0", 0,
     "threads; 0: one per processor; results do not depend on it"},
    {"archive", 0, "FILE", OPTION_STRING, offsetof(struct common_arguments, archive), NULL, 0,
     "where costs, measurements and layouts are kept, instead of MODEL.allot beside the model"},
    {"help", 'h', NULL, OPTION_FLAG, offsetof(struct common_arguments, help), NULL, 0, "print this help"},
};
static const struct option_set common_set = OPTION_SET(common_rows);

static const char *command_name(const void *user, size_t i)
{
    (void)user;
    return i < n_commands ? commands[i]->name : NULL;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < n_commands; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

/* The command's own sets and the common one. */
static size_t option_sets(const struct command *command, const struct option_set *sets[static MAX_SETS])
{
    size_t n = 0;
    for (size_t i = 0; i < MAX_SETS - 1 && command->options[i]; i++)
        sets[n++] = command->options[i];
    sets[n++] = &common_set;
    return n;
}

/* ---- Help ------------------------------------------------------------------------------------ */

static void format_overview(struct strbuf *sb)
{
    strbuf_addf(sb, "usage: allot COMMAND [options]\n\n");
    options_wrap(sb, "allot decides how many bits each tensor of a GGUF language model deserves.", 0, 0);
    strbuf_addf(sb, "\nCommands:\n");
    for (size_t i = 0; i < n_commands; i++) {
        strbuf_addf(sb, "  %-10s", commands[i]->name);
        options_wrap(sb, commands[i]->summary, 12, 12);
    }
    strbuf_addf(sb, "\n'allot COMMAND -h' tells more. 'allot --version' prints the version.\n");
}

static void format_command(struct strbuf *sb, const struct command *command)
{
    strbuf_addf(sb, "usage: allot %s ", command->name);
    options_wrap(sb, command->synopsis, 14 + (int)strlen(command->name), 14 + (int)strlen(command->name));
    strbuf_addf(sb, "\n");
    options_wrap(sb, command->description, 0, 0);
    strbuf_addf(sb, "\nOptions:\n");
    const struct option_set *sets[MAX_SETS];
    size_t n_sets = option_sets(command, sets);
    for (size_t i = 0; i < n_sets; i++)
        options_help(sb, sets[i]);
}

/* docs/commands.md: every help text, so that the page cannot drift from the program. */
static void format_markdown(struct strbuf *sb)
{
    strbuf_addf(sb, "# Commands\n\n");
    options_wrap(
        sb,
        "This page is the output of `allot help --markdown`; a test compares the two. Results go to "
        "standard output, progress, remarks and errors to standard error. Exit status: 0 done, 1 failed "
        "(one line says why), 2 wrong usage, 130 interrupted (what `cost`, `quantize` and `validate` had "
        "finished is "
        "kept, and the same command goes on from there). Sizes: `6GB` is 6e9 bytes, `6GiB` is 6*2^30, "
        "plain numbers are bytes.",
        0, 0);
    strbuf_addf(sb, "\n```\n");
    format_overview(sb);
    strbuf_addf(sb, "```\n");
    for (size_t i = 0; i < n_commands; i++) {
        strbuf_addf(sb, "\n## %s\n\n```\n", commands[i]->name);
        format_command(sb, commands[i]);
        strbuf_addf(sb, "```\n");
    }
}

static allot_status check_stdout(struct allot_error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return ALLOT_OK;
    return allot_fail(err, ALLOT_ERR_IO, "standard output: %s", strerror(errno));
}

static int print_and_release(struct strbuf *sb)
{
    struct allot_error err;
    allot_status status = strbuf_check(sb, &err);
    if (status == ALLOT_OK) {
        fwrite(sb->data, 1, sb->len, stdout);
        status = check_stdout(&err);
    }
    strbuf_release(sb);
    if (status == ALLOT_OK)
        return EXIT_SUCCESS;
    fprintf(stderr, "allot: %s\n", err.message);
    return EXIT_FAILURE;
}

/* ---- Running --------------------------------------------------------------------------------- */

void command_end_progress(const struct allot_progress *progress)
{
    if (progress && progress->user)
        progress_finish(progress->user);
}

static int usage_error(const struct command *command, const char *message)
{
    fprintf(stderr, "allot: %s ('allot %s%s' tells more)\n", message, command ? command->name : "help",
            command ? " -h" : "");
    return EXIT_USAGE;
}

static allot_status check_operands(const struct command *command, const struct common_arguments *common,
                                   struct allot_error *err)
{
    const struct string_list *operands = &common->operands;
    if (operands->n < command->min_operands)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: an argument is missing: %s", command->name,
                          command->synopsis);
    if (operands->n > command->max_operands)
        return allot_fail(err, ALLOT_ERR_ARGUMENT, "%s: '%s' is one argument too many", command->name,
                          operands->items[command->max_operands]);
    return ALLOT_OK;
}

static int execute(const struct command *command, const void *arguments,
                   const struct common_arguments *common)
{
    struct allot_error err = {0};
    struct progress state;
    progress_init(&state, common->quiet);
    const struct allot_progress progress = progress_callbacks(&state);
    signals_install();
    allot_status status = command->run(arguments, &progress, &err);
    progress_finish(&state);
    if (status == ALLOT_OK)
        status = check_stdout(&err);
    if (status == ALLOT_OK)
        return EXIT_SUCCESS;
    fprintf(stderr, "allot: %s\n", err.message);
    return status == ALLOT_ERR_INTERRUPTED ? EXIT_INTERRUPTED : EXIT_FAILURE;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    struct allot_error err = {0};
    const struct option_set *sets[MAX_SETS];
    const size_t n_sets = option_sets(command, sets);
    void *arguments = calloc(1, command->arguments_size);
    if (!arguments) {
        fprintf(stderr, "allot: out of memory\n");
        return EXIT_FAILURE;
    }
    struct common_arguments *common = arguments;
    int code;
    if (options_parse(sets, n_sets, arguments, argc, argv, &common->operands, &common->given, &err) !=
        ALLOT_OK) {
        code = usage_error(command, err.message);
    } else if (common->help) {
        struct strbuf sb = {0};
        format_command(&sb, command);
        code = print_and_release(&sb);
    } else if (check_operands(command, common, &err) != ALLOT_OK ||
               (command->check && command->check(arguments, &err) != ALLOT_OK)) {
        code = usage_error(command, err.message);
    } else {
        code = execute(command, arguments, common);
    }
    options_release(sets, n_sets, arguments);
    string_list_release(&common->operands);
    string_list_release(&common->given);
    free(arguments);
    return code;
}

static int unknown_command(const char *name)
{
    char message[256];
    const char *near = nearest_word(name, command_name, NULL);
    snprintf(message, sizeof message, "'%.100s' is not a command%s%s%s", name, near ? "; did you mean '" : "",
             near ? near : "", near ? "'?" : "");
    return usage_error(NULL, message);
}

static int help(int argc, char **argv)
{
    struct strbuf sb = {0};
    if (argc > 0 && strcmp(argv[0], "--markdown") == 0) {
        format_markdown(&sb);
    } else if (argc > 0) {
        const struct command *command = find_command(argv[0]);
        if (!command)
            return unknown_command(argv[0]);
        format_command(&sb, command);
    } else {
        format_overview(&sb);
    }
    return print_and_release(&sb);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        struct strbuf sb = {0};
        format_overview(&sb);
        fputs(sb.data ? sb.data : "", stderr);
        strbuf_release(&sb);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        struct strbuf sb = {0};
        strbuf_addf(&sb, "allot %s\n", ALLOT_VERSION);
        return print_and_release(&sb);
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)
        return help(argc - 2, argv + 2);
    const struct command *command = find_command(argv[1]);
    return command ? run_command(command, argc - 2, argv + 2) : unknown_command(argv[1]);
}
