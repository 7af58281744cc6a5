/* file.h - files that appear whole or not at all, and facts about paths.
 * SPDX-License-Identifier: MIT */
#ifndef ALLOT_BASE_FILE_H
#define ALLOT_BASE_FILE_H

#include "allot.h"

/* ---- Output that replaces its target atomically --------------------------------------------
 * The bytes go to a temporary file in the target's directory; commit syncs it, renames it over the
 * target and syncs the directory. Abandon (and release) removes the temporary file. Every live
 * output is also removed by file_remove_temporaries, which a signal handler may call. */
struct file_output {
    char *path;      /* the target */
    char *temp_path; /* NULL when nothing is open */
    int fd;
};

/* Errors name the folder and why (absent, not a directory, no permission). */
allot_status file_output_open(struct file_output *out, const char *path, struct allot_error *err);
/* Writes all n bytes, or fails naming the path and cause (ENOSPC as "no space left"). */
allot_status file_output_write(struct file_output *out, const void *bytes, size_t n, struct allot_error *err);
allot_status file_output_commit(struct file_output *out, struct allot_error *err);
void file_output_abandon(struct file_output *out);

/* One call: open, write, commit. */
allot_status file_write_all(const char *path, const void *bytes, size_t n, struct allot_error *err);

/* Async-signal-safe: unlinks the temporary files of all open outputs of this process. */
void file_remove_temporaries(void);

/* Writes n bytes at offset of an open fd (loops over short writes and EINTR); `path` is for the message. */
allot_status file_pwrite_all(int fd, const void *bytes, size_t n, int64_t offset, const char *path,
                             struct allot_error *err);

/* ---- For outputs of other kinds -------------------------------------------------------------- */

/* The cause of the last failure (errno), in the words users search for. */
const char *file_cause(void);
/* The path without its folders. */
const char *file_base_name(const char *path);
/* The folder part of a path ("." if none); caller frees. NULL: no memory. */
char *file_folder(const char *path);

/* Where an output is to go. An existing target must be a regular file: renaming over a device or a pipe
 * would destroy it. A link is resolved, so that it goes on pointing at what it points at. Its folder must
 * exist. Caller frees both; folder may be NULL. */
allot_status file_resolve_target(char **resolved, char **folder, const char *path, struct allot_error *err);

/* Renames the file `path`, open and synced as fd, over the target, whose permissions it takes over if there
 * is one and that is allowed; the new name survives a power cut where the file system can sync a folder.
 * False (errno says why): nothing was renamed. */
bool file_replace(int fd, const char *path, const char *target);

/* ---- Input ---------------------------------------------------------------------------------- */
struct file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
    char *path;
};

/* Maps a regular file read-only. Errors: no such file, is a directory, cannot read. */
allot_status file_map_open(struct file_map *map, const char *path, struct allot_error *err);
void file_map_close(struct file_map *map);

/* Identity of a regular file, for caching what was computed from its bytes. */
struct file_identity {
    int64_t size, mtime_ns, ctime_ns;
    uint64_t device, inode;
};
allot_status file_identify(struct file_identity *id, const char *path, struct allot_error *err);

/* True if both paths exist and are the same file (device and inode, through links). */
bool file_same(const char *a, const char *b);
/* True if both are the same name in the same folder (through links), whether or not there is such a file. */
bool file_same_place(const char *a, const char *b);

/* Fails (ALLOT_ERR_IO) if the file system that would hold `path` has fewer than `bytes` free;
 * the message gives both numbers. */
allot_status file_require_space(const char *path, int64_t bytes, struct allot_error *err);

#endif
