/* SPDX-License-Identifier: MIT */
/* bus-internal - what the files of the bus share: the connection, the views of objects, and who may change things. */
#ifndef DAEMON_BUS_INTERNAL_H
#define DAEMON_BUS_INTERNAL_H

#include <stdint.h>
#include <systemd/sd-bus.h>

#include "daemon/bus.h"
#include "daemon/documents.h"
#include "daemon/service.h"

#define BUS_ROOT "/org/moeexpertd"
#define BUS_MANAGER BUS_NAME ".Manager1"
#define BUS_MODEL BUS_NAME ".Model1"
#define BUS_SESSION BUS_NAME ".Session1"
#define BUS_JOB BUS_NAME ".Job1"
#define BUS_PATH_MAX 256 /* a model's name is at most 63 bytes, each three when escaped */
#define BUS_ERROR_MAX 1024

/* In the order in which they are told. */
enum bus_kind { BUS_KIND_MODEL, BUS_KIND_SESSION, BUS_KIND_JOB };

/* One of them as it was told, or is to be. */
struct bus_object {
	enum bus_kind kind;
	uint64_t key;   /* epoch, or number */
	uint32_t value; /* that listeners are told of: a model's sessions and policy, a job's progress in promille */
	char path[BUS_PATH_MAX];
};

/* What the manager's properties were when they were told. */
struct bus_counts {
	uint32_t models, sessions, jobs;
	uint64_t bytes;
	const char *state;
};

/*
 * What libsystemd reads properties from: filled by the object's find callback just before, so that a property is a
 * plain member of it.
 */
struct manager_view {
	const char *version, *state, *socket, *isa;
	uint32_t pid, threads, models, sessions, jobs, restarts;
	uint64_t bytes, memory_max, pool_max, fill_budget, weight_bytes_read;
	int draining, kept;
};

struct model_view {
	const char *name, *digest, *path, *family, *policy;
	uint32_t layers, moe_layers, experts, topk, hidden, inter, frames, sessions, leases;
	uint64_t bytes, load_usec;
	int tiered;
	char name_text[MOE_NAME_BYTES], digest_text[2 * MOE_DIGEST_BYTES + 1], path_text[4096];
};

struct session_view {
	const char *model, *model_name, *phase;
	uint32_t pid, uid, tp_rank, tp_size, dp_rank, ep_rank, in_flight, leases;
	uint64_t id, group, device, step, data_bytes, slot_bytes, charged_bytes, failed, cancelled;
	char model_text[BUS_PATH_MAX], name_text[MOE_NAME_BYTES];
};

struct job_view {
	uint32_t id;
	const char *kind, *target, *state, *result, *error, *message;
	double progress;
	char target_text[4096], message_text[MOE_ERROR_TEXT_MAX];
};

struct ask;
struct bus_reader;

struct bus {
	struct service *service;
	char *address;
	sd_bus *link;         /* NULL: there is none, it is tried again */
	struct source source; /* an epoll: of the link's socket, and of the clock */
	int clock;
	int watched; /* of the link; -1: it is not in the epoll */
	uint32_t watched_events;
	uint64_t pause_ns; /* before the next attempt */
	uint64_t ask_ns;   /* when to ask again for a name that was refused; 0: it was not */
	uint64_t rest_ns;  /* until then the link is left alone, after a turn that took long; 0: it is not */
	const char *state;
	char why[BUS_ERROR_MAX];
	bool complained; /* that there is no link, since the last one */
	bool up;         /* the bus has said who has the name */
	bool changed;    /* something may have to be told */
	int broken;      /* -errno: an answer could not be given, so the link is given up; 0: all could */
	bool unfreeable; /* libsystemd would abort */

	struct bus_object *told;
	uint32_t n_told;
	struct bus_counts counts;
	uint64_t progress_ns; /* when progress was told */

	struct ask *asks;
	uint32_t n_asks;

	struct bus_reader *readers; /* of documents (bus-documents.c) */
	uint32_t n_readers;
	struct bus_document {
		bool here; /* it is handed out, or why there is none */
		char *text;
		int r;
		struct moe_error err;
	} document;

	struct documents figures; /* what they are made of (bus-figures.c), and until when that is news */
	uint64_t figures_ns;

	/* Views of the object that was found last. */
	struct manager_view manager;
	struct model_view model;
	struct session_view session;
	struct job_view job;
};

/* -- bus.c -------------------------------------------------------------------------------------------------------- */

/* After anything that may have put messages into the link: watches what it now waits for. */
void bus_watch(struct bus *b);

/* How giving an answer went, `r`, to return. One that could not be given, for want of memory say, would be waited for
 * in vain: the link is given up then, between the reactor's turns, and the bus says so to all who wait. */
int bus_gave(struct bus *b, int r);

/* Answers a call with what its handler has come to, an error. Handlers do so themselves: libsystemd would, too, but
 * leaves the caller waiting where it has no memory for that. Returns what they return then. */
int bus_refuse(struct bus *b, sd_bus_message *call, int r, sd_bus_error *error);

/* -- bus-objects.c ------------------------------------------------------------------------------------------------ */

/* All vtables. 0 or -errno. */
int bus_add_objects(struct bus *b);
/* Of all models, sessions and jobs, in order of kind and key; malloc'ed. -ENOMEM. */
int bus_list_objects(const struct bus *b, struct bus_object **ret, uint32_t *ret_n);
/* Their order, for qsort and for comparing lists. */
int bus_order(const void *a, const void *b);
void bus_count(const struct bus *b, struct bus_counts *ret);
const char *bus_interface(enum bus_kind kind);
int bus_model_path(char to[BUS_PATH_MAX], const char *name);
void bus_job_path(char to[BUS_PATH_MAX], uint32_t id);
void bus_session_path(char to[BUS_PATH_MAX], uint64_t id);
struct entry *bus_find_model(const struct bus *b, const char *path);
struct session *bus_find_session(const struct bus *b, const char *path);
struct job *bus_find_job(const struct bus *b, const char *path);
const char *bus_job_kind(const struct job *job);
const char *bus_job_result(const struct job *job); /* "" while it runs */
double bus_job_progress(const struct bus *b, const struct job *job);

/* -- bus-figures.c ------------------------------------------------------------------------------------------------ */

/* The interfaces with the figures. 0 or -errno. */
int bus_add_figures(struct bus *b);
/* The interface of the figures of such objects, or NULL. */
const char *bus_figures_interface(enum bus_kind kind);

/* -- bus-documents.c ---------------------------------------------------------------------------------------------- */

/* Answers the call when the document is there. 1, or an error. */
int bus_want_document(struct bus *b, sd_bus_message *call, uint32_t what, sd_bus_error *ret_error);
/* Gives the document that was made to one of those who wait for it, unless the bus is slow. True: it did. */
bool bus_hand_document(struct bus *b);
/* The link has gone, and all who asked over it. */
void bus_forget_readers(struct bus *b);

/* -- bus-words.c -------------------------------------------------------------------------------------------------- */

/* D-Bus takes only UTF-8: other bytes become '?'. Returns `to`. */
const char *bus_text(char *to, size_t size, const char *from);

/* The name of an errno value, "org.moeexpertd.Error." and a word: of what a load came to, or of what was refused. */
const char *bus_error_name(int code, bool load);
/* Puts name and words into `ret` and returns the negative value that libsystemd wants. */
int bus_error(sd_bus_error *ret, int code, const struct moe_error *err);

/* -- bus-methods.c ------------------------------------------------------------------------------------------------ */

int bus_on_load_model(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_unload_model(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_set_policy(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_drain(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_resume(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_list_models(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_list_sessions(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_list_jobs(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_get_model(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_get_status(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_get_stats(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_model_unload(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);
int bus_on_job_cancel(sd_bus_message *m, void *userdata, sd_bus_error *ret_error);

/* -- bus-caller.c ------------------------------------------------------------------------------------------------- */

/* Does what a call asks for and answers it, or returns what bus_error() does. */
typedef int (*bus_act_t)(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error);

/* Finds out whether the caller may do `action` (of org.moeexpertd.policy), and then does it: later. 1, or an error. */
int bus_ask(struct bus *b, sd_bus_message *call, const char *action, bus_act_t act, sd_bus_error *ret_error);
/* The link has gone, and all who asked over it. */
void bus_forget_asks(struct bus *b);

/* -- bus-signals.c ------------------------------------------------------------------------------------------------ */

/* A new link: what there is now nobody has to be told. -ENOMEM. */
int bus_begin_telling(struct bus *b);
/* True: told something. */
bool bus_tell(struct bus *b);

#endif
