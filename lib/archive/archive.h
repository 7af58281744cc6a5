/* archive.h - MODEL.allot: costs and measurements that outlive an interruption (SQLite).
 * SPDX-License-Identifier: MIT
 *
 * Everything is keyed by content hashes. WAL; one transaction per finished tensor: a crash loses at
 * most the tensor in hand. Two processes may use one archive; the second writer waits. A file that
 * is not an archive, is damaged, or is of a newer schema gives one clear error and is not changed. */
#ifndef ALLOT_ARCHIVE_ARCHIVE_H
#define ALLOT_ARCHIVE_ARCHIVE_H

#include "allot.h"
#include "base/file.h"

struct archive;
/* Creates the file if absent. */
allot_status archive_open(struct archive **out, const char *path, struct allot_error *err);
/* Opens an archive that exists; where it or its folder cannot be written, read-only: then nothing can be put
 * into it. */
allot_status archive_open_to_read(struct archive **out, const char *path, struct allot_error *err);
bool archive_is_read_only(const struct archive *a);
const char *archive_path(const struct archive *a); /* as it was opened */
void archive_close(struct archive *a);

/* ---- Merging ------------------------------------------------------------------------------- */
struct archive_merged {
    int64_t cost_sets, costs, measurements, blobs; /* that are new */
};
/* Is there an archive to merge, and whole? Reads all of it. */
allot_status archive_merge_check(const char *path, struct allot_error *err);
/* Takes over what the archive at the path, which archive_merge_check has accepted, holds and a does not, all
 * or nothing; hashes of files aside, which are facts about one machine. Which set of costs is the newest does
 * not change, unless there was none. The content of the other archive is not changed. One whose tables or
 * values are not what they should be is refused. Stage "merge"; interrupted, nothing is taken over. */
allot_status archive_merge(struct archive *a, const char *path, struct archive_merged *merged,
                           const struct allot_progress *progress, struct allot_error *err);

/* ---- Hashes of files, cached by identity -------------------------------------------------- */
/* True and the hash if the file with exactly this identity was hashed before. */
bool archive_file_hash(struct archive *a, const char *path, const struct file_identity *id,
                       char hex[static 65]);
allot_status archive_file_hash_put(struct archive *a, const char *path, const struct file_identity *id,
                                   const char *hex, struct allot_error *err);

/* ---- Blobs by kind and key (imatrices computed here, learned layouts) ---------------------- */
/* *data is NULL if absent; caller frees. */
allot_status archive_blob(struct archive *a, const char *kind, const char *key, void **data, size_t *size,
                          struct allot_error *err);
allot_status archive_blob_put(struct archive *a, const char *kind, const char *key, const void *data,
                              size_t size, struct allot_error *err);
/* Calls row for every blob of a kind, by rising key. A true return stops. */
allot_status archive_blob_each(struct archive *a, const char *kind,
                               bool (*row)(void *user, const char *key, const void *data, size_t size),
                               void *user, struct allot_error *err);

/* ---- Costs ------------------------------------------------------------------------------------ */
/* What a cost depends on, besides tensor and type. */
struct archive_cost_key {
    const char *model_sha256;
    const char *text_sha256;    /* of the token windows */
    const char *imatrix_sha256; /* "" without */
    const char *method;         /* "fisher" */
    const char *params;         /* "chunk=32+128 seed=1" */
    const char *version;        /* of what computed it */
};

struct archive_cost {
    const char *type;     /* type's name */
    int64_t bytes;        /* of the tensor in that type, unpadded */
    double cost, std_err; /* nats per token */
    bool feasible;
    const float *u; /* per-chunk values, n_u of them; NULL if none */
    size_t n_u;
};

/* Finds or creates the set; its id is local to this archive. */
allot_status archive_cost_set(struct archive *a, const struct archive_cost_key *key, int64_t *set_id,
                              struct allot_error *err);
/* Notes that the set is newest (used now), and how many calibration tokens stand behind it. */
allot_status archive_cost_set_touch(struct archive *a, int64_t set_id, int64_t n_tokens,
                                    struct allot_error *err);

/* True for each of the n types of the tensor that the set already holds. */
allot_status archive_cost_have(struct archive *a, int64_t set_id, const char *tensor,
                               const char *const *types, size_t n, bool *have, struct allot_error *err);
/* Stores all rows of one tensor in one transaction (replacing equal keys). */
allot_status archive_cost_put(struct archive *a, int64_t set_id, const char *tensor,
                              const struct archive_cost *rows, size_t n, struct allot_error *err);
/* Notes that every tensor has what it can have of these types, besides those noted before: a set whose run
 * was interrupted holds rows, but not all of any type. */
allot_status archive_cost_finish(struct archive *a, int64_t set_id, const char *const *types, size_t n,
                                 struct allot_error *err);
/* True for each of the n types that was so noted. */
allot_status archive_cost_finished(struct archive *a, int64_t set_id, const char *const *types, size_t n,
                                   bool *finished, struct allot_error *err);
/* Calls row for every stored (tensor, type) in (tensor, type) order, u included only if with_u. A true return
 * stops. */
allot_status archive_cost_each(struct archive *a, int64_t set_id, bool with_u,
                               bool (*row)(void *user, const char *tensor, const struct archive_cost *cost),
                               void *user, struct allot_error *err);

struct archive_cost_set_info {
    int64_t id;
    char model_sha256[65], text_sha256[65], imatrix_sha256[65];
    char method[32], params[256], version[96];
    char updated[32]; /* UTC, ISO 8601 */
    int64_t n_tensors, n_rows, n_tokens;
};
/* The sets of a model, newest first; caller frees *sets. */
allot_status archive_cost_sets(struct archive *a, const char *model_sha256,
                               struct archive_cost_set_info **sets, size_t *n, struct allot_error *err);

/* ---- Measurements ----------------------------------------------------------------------------- */
/* One JSON document per (base, candidate, text, settings); replaces an equal key. */
allot_status archive_measurement_put(struct archive *a, const char *base_sha256, const char *candidate_sha256,
                                     const char *text_sha256, const char *settings, const char *json,
                                     struct allot_error *err);
/* *json is NULL if absent; caller frees. */
allot_status archive_measurement(struct archive *a, const char *base_sha256, const char *candidate_sha256,
                                 const char *text_sha256, const char *settings, char **json,
                                 struct allot_error *err);

#endif
