/* SPDX-License-Identifier: MIT */
/*
 * settings - what of the daemon may be set, in files and by options: one table, the values, and where each is from.
 *
 * Law: the table (table.c) is the only place that says which settings there are, their types, ranges, units and
 * defaults: `moe-expertd --help`, `moectl config` and expertd.conf(5) say what it says. The daemon and moectl read the
 * same files by the same code. What is set later wins: defaults, then files in the order of settings_read, then
 * options. A value that is not of its type is an error that names its file and line; an unknown key is a warning, so
 * that a file can serve daemons of several versions.
 *
 * Memory is owned by the struct. Nothing here is thread-safe, nothing is logged.
 */
#ifndef SETTINGS_SETTINGS_H
#define SETTINGS_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

#define SETTINGS_MODELS_MAX 16
#define SETTINGS_FILE_MAX (1u << 20) /* bytes of one file */

enum setting {
	SETTING_SOCKET,
	SETTING_SOCKET_MODE,
	SETTING_VERBOSE,
	SETTING_METRICS,
	SETTING_BUS,
	SETTING_BUS_NAME,
	SETTING_STATE_DIRECTORY,
	SETTING_MODEL,
	SETTING_PAGES,
	SETTING_MEMORY_MAX,
	SETTING_POOL_MAX,
	SETTING_REPLICA_MAX,
	SETTING_TIER_POLICY,
	SETTING_HEAT_STEPS,
	SETTING_WRITABLE_WEIGHTS,
	SETTING_MODULE,
	SETTING_THREADS,
	SETTING_ISA,
	SETTING_SPIN,
	SETTING_FILL_BUDGET,
	SETTING_PUSH_CUDA,
	SETTING_PUSH_PATIENCE,
	SETTING_UID_BYTES,
	SETTING_UID_FDS,
	SETTING_UID_CONNECTIONS,
	SETTING_UID_SESSIONS,
	SETTING_UID_REQUESTS,
	SETTING_UID_LEASES,
	SETTINGS
};

enum setting_type {
	SETTING_TYPE_PATH,   /* absolute, in a file */
	SETTING_TYPE_MODEL,  /* a path, or NAME:PATH; a list */
	SETTING_TYPE_NUMBER, /* decimal */
	SETTING_TYPE_OCTAL,
	SETTING_TYPE_BYTES, /* with K, M, G or T, powers of 1024, and a fraction */
	SETTING_TYPE_BOOL,  /* yes or no; also true, on, 1, false, off, 0 */
	SETTING_TYPE_WORD,  /* one of `words` */
	SETTING_TYPE_TEXT,  /* what `words` says; settings_check tells whether it is */
};

struct setting_def {
	const char *section, *key;
	const char *option;   /* of the command line, without "--" */
	const char *part;     /* of an option that is for several settings, as --uid-limit PART=N; else NULL */
	const char *argument; /* as --help calls it; "[=X]" may be left out */
	enum setting_type type;
	uint64_t min, max;    /* of numbers and bytes */
	const char *words;    /* between blanks; of a text, what it may be */
	const char *preset;   /* the default, as it would be written; NULL: there is no fixed one, but ... */
	const char *computed; /* ... this, in words, and the number is 0 */
	const char *unit;     /* NULL: none */
	bool live;            /* a reload (SIGHUP) changes it; else a restart does */
	const char *help;
};

extern const struct setting_def settings_table[SETTINGS];

enum settings_kind { SETTINGS_FROM_DEFAULT, SETTINGS_FROM_FILE, SETTINGS_FROM_OPTION };

struct settings_from {
	enum settings_kind kind;
	const char *file; /* of SETTINGS_FROM_FILE */
	uint32_t line;
};

struct setting_value {
	char *text;      /* as written; NULL: the default is in force */
	uint64_t number; /* of WORD its index, of BOOL 0 or 1, of PATH nothing */
	enum settings_kind kind;
	char *file;
	uint32_t line;
};

struct settings_model {
	char *path, *name; /* name NULL: the folder's */
	char *file;        /* where it is from; NULL: the command line */
	uint32_t line;
};

struct settings {
	struct setting_value values[SETTINGS];
	struct settings_model models[SETTINGS_MODELS_MAX];
	uint32_t n_models;
	char **files; /* that were read, in their order */
	uint32_t n_files;
	/* One line, without end, for what is passed over. NULL: nobody hears. */
	void (*warn)(const char *text, void *userdata);
	void *userdata;
};

/* Everything at its default. */
void settings_init(struct settings *s);
void settings_free(struct settings *s);

/* Sets one; in a file an empty text sets the default again. 0, -ENOMEM, or -EINVAL: *err names the place, the value and
 * what was expected, and nothing has changed. Of the list of models: adds one, after the first of a higher kind has
 * thrown out those of the lower ones. */
int settings_set(struct settings *s, enum setting which, const char *text, const struct settings_from *from,
		 struct moe_error *err);
/* Names the last model. */
int settings_name_model(struct settings *s, const char *name, struct moe_error *err);

/* Takes over `which` from `from`, which gets what this one had. */
void settings_swap(struct settings *s, struct settings *from, enum setting which);
bool settings_same(const struct settings *a, const struct settings *b, enum setting which);

/* Reads one file's text. `file` is its name in errors. 0, -EINVAL or -ENOMEM; lines before the wrong one are set. */
int settings_parse(struct settings *s, const char *file, const char *text, size_t size, struct moe_error *err);

/* Reads that file: 0 or -errno. */
int settings_read_file(struct settings *s, const char *path, struct moe_error *err);

/* Reads what the system has below `root` ("" is the system itself): moe-expertd/expertd.conf of /etc, /run or /usr/lib,
 * the first that there is; then moe-expertd/expertd.conf.d/NAME.conf of all three in the order of the names, where of
 * one name the first of the three counts. 0, also when there is none, or -errno. */
int settings_read(struct settings *s, const char *root, struct moe_error *err);

/* `file`, else $MOE_EXPERTD_CONFIG, else settings_read below `root`. */
int settings_load(struct settings *s, const char *file, const char *root, struct moe_error *err);

/* What is wrong with the level of Isa= on the machine that is meant; NULL: nothing. */
typedef const char *settings_isa_wrong(const char *level);
/* What a type cannot tell, of the daemon's start, of its reload and of whoever asks beforehand: 0, or -EINVAL and the
 * place and what is expected in *err. */
int settings_check(const struct settings *s, settings_isa_wrong *isa_wrong, struct moe_error *err);

/* -- the models of a start ----------------------------------------------------------------------------------------- */

/* What a model is called that has no name of its own, or NULL: its folder, an absolute path. */
const char *settings_model_name(const char *path, const char *name);
/* A model's name, by itself: 1 to 63 bytes of UTF-8 without control characters and slashes. 0 or -EINVAL. */
int settings_check_word(const char *name, struct moe_error *err);
#define SETTINGS_PLACE 512
/* What the i-th model is by: "FILE:LINE: Model=...", or its options. Returns `to`. */
const char *settings_model_place(char to[SETTINGS_PLACE], const struct settings *s, uint32_t i);
/*
 * Whether the i-th model can be loaded beside those before it: 0, or 1 where it is one of them once more, which is
 * loaded once. -EINVAL: its name is none; -EEXIST: it is that of another one; *err names the places. Folders are looked
 * for below `root` ("" is the system itself), which takes as long as their disks do; one that is not there has no name,
 * and that it is missing is not told here.
 */
int settings_check_model(const struct settings *s, uint32_t i, const char *root, struct moe_error *err);
/* The same of all: 0 or -errno. */
int settings_check_models(const struct settings *s, const char *root, struct moe_error *err);

/* -- words --------------------------------------------------------------------------------------------------------- */

/* Where a value is from: "FILE:LINE", "command line" or "default". Returns `to`. */
const char *settings_origin(const struct settings *s, enum setting which, char *to, size_t size);
/* What is in force: as written, the fixed default, or the words for the computed one. Of models: `to`, one a line. */
const char *settings_text(const struct settings *s, enum setting which, char *to, size_t size);
/* What is accepted: "1 to 4096", "auto, 1g, 2m, thp or 4k". Returns `to`. */
const char *settings_range(enum setting which, char *to, size_t size);
/* How many letters must be put in, left out or exchanged; case does not count. Many when one is too long. */
#define SETTINGS_WORD_MAX 64
uint32_t settings_distance(const char *a, const char *b);
/* "MemoryMax" of the words that lie nearest, or NULL when none is near. Keys of `section` go first. */
const struct setting_def *settings_nearest(const char *section, const char *key);

#endif
