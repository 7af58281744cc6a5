/* memory.c - how much memory the process may use, and has.  SPDX-License-Identifier: MIT
 *
 * proc(5), cgroups(7): /proc/self/cgroup names the process's group in each hierarchy, /proc/self/mountinfo
 * where a hierarchy (or, in a container, the part of it below some group) is mounted. */
#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The two kinds of hierarchy that can limit memory. */
struct hierarchy {
    const char *filesystem; /* as mountinfo calls it */
    const char *controller; /* what its mount options and its line in /proc/self/cgroup list; NULL: nothing */
    const char *file;       /* holds the limit of a group */
};
static const struct hierarchy hierarchies[] = {
    {"cgroup2", NULL, "memory.max"},
    {"cgroup", "memory", "memory.limit_in_bytes"},
};
enum { N_HIERARCHIES = sizeof hierarchies / sizeof hierarchies[0] };

static FILE *open_below(const char *root, const char *path)
{
    char full[PATH_MAX];
    const int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && n < (int)sizeof full ? fopen(full, "re") : NULL;
}

/* Is the word one of the list's, which commas separate? */
static bool lists(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == '\0' || at[n] == ','))
            return true;
    return false;
}

/* The process's group in the hierarchy, "/" if it is not told. */
static void find_group(const char *root, const struct hierarchy *h, char group[static PATH_MAX])
{
    char *line = NULL;
    size_t capacity = 0;
    FILE *f = open_below(root, "/proc/self/cgroup");
    strcpy(group, "/");
    while (f && getline(&line, &capacity, f) > 0) { /* NUMBER:CONTROLLERS:GROUP */
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = '\0';
        *path++ = '\0';
        if (h->controller ? lists(controllers, h->controller) : strcmp(line, "0") == 0 && !*controllers)
            snprintf(group, PATH_MAX, "%.*s", (int)strcspn(path, "\n"), path);
    }
    free(line);
    if (f)
        fclose(f);
}

/* mountinfo writes blanks and backslashes of paths as three octal digits. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        int value = 0, digits = 0;
        while (*from == '\\' && digits < 3 && from[1 + digits] >= '0' && from[1 + digits] <= '7')
            value = value * 8 + from[1 + digits++] - '0';
        *to = digits == 3 ? (char)value : *from;
        from += digits == 3 ? 4 : 1;
    }
    *to = '\0';
}

static int64_t read_limit(const char *root, const char *folder, const char *name)
{
    char path[PATH_MAX], text[32] = "";
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = n > 0 && n < (int)sizeof path ? open_below(root, path) : NULL;
    if (!f)
        return INT64_MAX;
    if (!fgets(text, sizeof text, f))
        text[0] = '\0';
    fclose(f);
    char *end;
    errno = 0;
    const long long bytes = strtoll(text, &end, 10);
    return end == text || errno || bytes < 0 ? INT64_MAX : bytes; /* "max" is none */
}

/* The least limit of the group and those above it. mounted: the group that the mount point shows. */
static int64_t least_limit(const char *root, const struct hierarchy *h, const char *mounted,
                           const char *mount_point, const char *group)
{
    char folder[PATH_MAX];
    const size_t top = strlen(mount_point), skip = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    const bool inside = strncmp(group, mounted, skip) == 0 && (group[skip] == '/' || group[skip] == '\0');
    const int n = snprintf(folder, sizeof folder, "%s%s", mount_point, inside ? group + skip : "");
    int64_t least = INT64_MAX;
    if (n < 0 || n >= (int)sizeof folder)
        folder[top < sizeof folder ? top : 0] = '\0';
    for (;;) {
        const int64_t limit = read_limit(root, folder, h->file);
        char *slash = strrchr(folder, '/');
        least = limit < least ? limit : least;
        if (!slash || strlen(folder) <= top)
            return least;
        *slash = '\0';
    }
}

/* A line of mountinfo: ID PARENT DEVICE MOUNTED MOUNT_POINT OPTIONS [OPTIONAL...] - FILESYSTEM SOURCE OPTIONS
 */
static int64_t limit_of_mount(const char *root, char *line, char (*groups)[PATH_MAX])
{
    enum { MOUNTED = 3, MOUNT_POINT, N_BEFORE };
    char *before[N_BEFORE] = {0}, *after[3] = {0}, *rest = strstr(line, " - "), *save;
    if (!rest)
        return INT64_MAX;
    *rest = '\0';
    char *word = strtok_r(line, " ", &save);
    for (int i = 0; i < N_BEFORE && word; i++, word = strtok_r(NULL, " ", &save))
        before[i] = word;
    word = strtok_r(rest + 3, " \n", &save);
    for (int i = 0; i < 3 && word; i++, word = strtok_r(NULL, " \n", &save))
        after[i] = word;
    if (!before[MOUNT_POINT] || !after[2])
        return INT64_MAX;
    unescape(before[MOUNTED]);
    unescape(before[MOUNT_POINT]);
    for (int i = 0; i < N_HIERARCHIES; i++) {
        const struct hierarchy *h = &hierarchies[i];
        if (strcmp(after[0], h->filesystem) == 0 && (!h->controller || lists(after[2], h->controller)))
            return least_limit(root, h, before[MOUNTED], before[MOUNT_POINT], groups[i]);
    }
    return INT64_MAX;
}

int64_t memory_limit_below(const char *root, int64_t physical)
{
    char groups[N_HIERARCHIES][PATH_MAX], *line = NULL;
    size_t capacity = 0;
    int64_t least = physical;
    for (int i = 0; i < N_HIERARCHIES; i++)
        find_group(root, &hierarchies[i], groups[i]);
    FILE *f = open_below(root, "/proc/self/mountinfo");
    while (f && getline(&line, &capacity, f) > 0) {
        const int64_t limit = limit_of_mount(root, line, groups);
        least = limit < least ? limit : least;
    }
    free(line);
    if (f)
        fclose(f);
    return least;
}

int64_t memory_limit(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return memory_limit_below("", pages > 0 && page_bytes > 0 ? (int64_t)pages * page_bytes : INT64_MAX);
}

int64_t memory_default_limit(void)
{
    return memory_limit() / 10 * 6;
}

int64_t memory_own(void)
{
    char line[256];
    int64_t sum = 0;
    long long kib;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld kB", &kib) == 1 || sscanf(line, "RssShmem: %lld kB", &kib) == 1)
            sum += kib * 1024;
    if (f)
        fclose(f);
    return sum;
}

int64_t memory_base(int n_threads)
{
    /* Measured: OpenBLAS takes some 10 MiB for each thread that it is called on. */
    const int64_t mib = 1 << 20, sum = memory_own() + 16 * mib * (n_threads + 1);
    return (sum + 4 * mib - 1) / (4 * mib) * (4 * mib); /* so that the next run finds the same */
}
