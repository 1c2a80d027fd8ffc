/* SPDX-License-Identifier: MIT */
/*
 * service - everything that one daemon owns, and the turn that the reactor takes over it.
 *
 * Law: what a daemon before has left with the keeper (estate.h) is as it was if this one cannot start or its reactor
 * fails: the next one takes it over. What it cannot go on with it gives up only when nothing but a load can fail.
 *
 * The reactor's thread alone touches it. A turn serves the rings whose turn it is (pollset.h), hands work to the
 * pool, completes what the pool has finished, frees what has died, and looks after the load in progress.
 */
#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "daemon/accounts.h"
#include "daemon/agreement.h"
#include "daemon/bus.h"
#include "daemon/config.h"
#include "daemon/door.h"
#include "daemon/drafts.h"
#include "daemon/heat-round.h"
#include "daemon/heats.h"
#include "daemon/holes.h"
#include "daemon/jobs.h"
#include "daemon/listener.h"
#include "daemon/load.h"
#include "daemon/loop.h"
#include "daemon/modpools.h"
#include "daemon/modqueue.h"
#include "daemon/pollset.h"
#include "daemon/pool.h"
#include "daemon/push.h"
#include "daemon/registry.h"
#include "daemon/scheduler.h"
#include "daemon/session.h"
#include "daemon/taps.h"
#include "daemon/trace.h"

struct estate_page;
struct exporter;
struct handover;
struct peer;

/* What the service manager was told of it. */
struct service_manager {
	struct source tick;   /* a timer */
	uint64_t watchdog_ns; /* between two looks; 0: none are wanted */
	bool stuck;           /* no WATCHDOG=1 was sent at the last look */
	bool unheard;         /* it had no room for READY=1: it is told again */
	uint64_t status_ns;   /* when it last heard of the load */
	uint64_t moved;       /* of the load, then */
};

/* What goes to the keeper, and who waits for that. */
struct service_keeper {
	struct source post;         /* its socket, while descriptors wait for room in it */
	struct source patience;     /* a timer */
	struct peer *first, **last; /* by next_waiting, the longest first */
};

struct service {
	struct config *config; /* main's; a reload changes it */
	struct host *host;
	struct loop *loop;
	int64_t uring; /* what uring_probe found at the start */
	struct pool *pool;
	struct sched *sched;
	struct registry registry;
	struct handover *handover; /* main's */
	struct modpools modpools;
	struct modpools_gift gift; /* of the model that is being loaded */
	struct heats_saved saved;  /* the same */
	struct modqueue modqueue;
	bool ended; /* in order, by a signal: what is kept elsewhere is released */
	struct estate_page *estate;
	int registrar_fd;
	struct agreements agreements;
	struct heats heats;
	uint32_t turns;
	struct drafts drafts;
	struct push *push;         /* NULL: not asked for */
	struct exporter *exporter; /* the same */
	struct accounts *accounts;
	struct holes *holes;
	struct listener listener;
	struct door door;
	struct source signal_source, parent_source;
	struct source sums; /* a timer: events have sums to be told */
	struct service_manager manager;
	struct service_keeper keeper;
	bool trim;                    /* the last session, or a connection of one, has gone since the loop slept */
	struct peer *peers, *unheard; /* unheard: closed, with answers that were not read */
	uint32_t n_peers;
	struct session *sessions;
	struct heat_round heat_round;
	struct pollset rings;
	struct taps taps;
	bool bury;           /* a session has died, or the last request of a dead one has come back */
	uint64_t guard_hits; /* that were looked at */
	uint64_t instance, started_ns;
	uint64_t weight_bytes_read; /* from disk, by this daemon: loads, and the misses of models that were unloaded */

	struct bus *bus; /* NULL: --bus off */
	struct jobs jobs;
	bool draining; /* no sessions are taken in */
	struct job *drain_job;

	struct trace *trace; /* NULL: none is recorded */
	struct job *trace_job;
	struct peer *trace_peer; /* who asked; NULL: he has left */
	uint64_t trace_told_ns;

	struct load *load;
	struct job *load_job;
	struct peer *load_peer;    /* who asked; NULL: the command line, or the asker has left */
	uint64_t load_reported_ns; /* when progress was last told */
	uint32_t models_next;      /* config->models[models_next] is loaded next */
	bool leaves; /* ended now, what it has stays with the keeper: until a successor is ready, or by order */
	bool ready,
		writable_queues; /* writable_queues: no /proc, so clients hold a writable fd of their daemon region */
};

int service_new(struct service **ret, struct config *config, struct handover *handover, struct moe_error *err);
struct service *service_free(struct service *service);

/* Runs until a signal, the parent's end (private mode) or a failed first load. 0 or -errno. *ret_leaves: it was told to
 * leave everything to the successor: end the process at once, without service_free. */
int service_run(struct service *service, bool *ret_leaves);

/* Starts a load for `peer` (NULL: the command line). -EBUSY while one runs. */
int service_load(struct service *service, struct peer *peer, const char *path, const char *name, struct moe_error *err);

/* Whether the command line's models are there. 0 or -errno. */
int service_check_models(const struct service *service, struct moe_error *err);
/* Loads the next of them that is not there, or is ready. */
int service_load_next(struct service *service, struct moe_error *err);
/* Of the load in progress: tells who waits how far it is, or takes what it has brought. */
void service_report_load(struct service *service);
void service_finish_load(struct service *service);

/* Gives the model to the keeper, where there is one; the log says why it was not taken. */
void service_keep_model(struct service *service, struct entry *entry);
/* False: the model ends with this daemon, and sessions of it with it. */
bool service_outlives(const struct service *service, const struct entry *entry);
/* With ReplicaMax= the hot experts of a model that is there get copies. */
void service_start_mover(struct service *service, struct entry *entry);

/* To the service manager, which may be none: what is being done, as STATUS=; how the load in progress goes, with more
 * time to start (EXTEND_TIMEOUT_USEC=) as long as it moves; that it is ready; that it ends. A manager that has no room
 * for a message misses it, but for READY=1: nobody waits for it. */
void service_tell_status(struct service *service);
void service_tell_load(struct service *service);
void service_tell_ready(struct service *service);
void service_tell_end(struct service *service);
/* READY=1 is said again until the manager has room for it; with WATCHDOG_USEC, WATCHDOG=1 from the reactor, as long as
 * the pool moves. */
int service_manager_open(struct service *service, struct moe_error *err);
int service_keeper_open(struct service *service, struct moe_error *err);
/* peer_kept() is called when the keeper has what went to it before peer->kept_ns, or takes nothing: maybe at once. The
 * peer stays until then, or service_forget_waiting(). */
void service_await_keeper(struct service *service, struct peer *peer);
void service_forget_waiting(struct service *service, struct peer *peer); /* who may wait, or not */

/* Reads the configuration once more; the log says what came of it. */
void service_reload(struct service *service);

/* Asks the load in progress to end. -EBUSY: it is one of the command line's, without which the daemon would end. */
int service_cancel_load(struct service *service, struct moe_error *err);

/* No session is taken in from now on; the job ends when the last one has left. -EBUSY: so it is already. */
int service_drain(struct service *service, struct job **ret, struct moe_error *err);
/* Sessions are taken in again; the job, if it has not ended, is cancelled. */
void service_resume(struct service *service);
/* The last session has left. */
void service_drained(struct service *service);

/* Of a model that was not found (*err says so): whether it is on its way. */
void service_say_loading(const struct service *service, const char *name, struct moe_error *err);
/* -ENOENT; -EBUSY while sessions are attached. */
int service_unload(struct service *service, const char *name, struct moe_error *err);
/* Of a tiered model ("": the only model): registry_set_policy(). */
int service_set_policy(struct service *s, const char *model, const char *policy, struct moe_error *err);

/* What all sessions have told of their routers' choices is in the models' heat. With many of them it takes long. */
void service_take_heat(struct service *s);
/* The same soon; of few sessions, now. */
void service_begin_heat(struct service *s);
/* A model's heat begins anew, also on disk; 0 or -errno. */
int service_forget_heat(struct service *s, const char *model, struct moe_error *err);

/* Records what clients route into the file, for `peer`. The job is s->trace_job. -EBUSY, -ENOENT, and
 * as trace_start. */
int service_start_trace(struct service *s, struct peer *peer, int fd, const struct trace_params *params,
			struct moe_error *err);
/* What was routed so far is written, then the job ends. -ESRCH. */
int service_stop_trace(struct service *s, struct moe_error *err);
/* If it was this peer that asked, the recording ends. */
void service_trace_left(struct service *s, const struct peer *peer);
/* While there is a recording: tells of it, and of its end. True: did something. */
bool service_trace_turn(struct service *s);
/* At the daemon's end: what was recorded is in the file. */
void service_end_trace(struct service *s);

/* Takes a session in, with a new number if it has none. */
void service_add_session(struct service *service, struct session *session);
/* Its connection is gone: session_kill, and its memory goes when the pool has given back its requests. */
void service_kill_session(struct service *service, struct session *session);
/* It has broken the ring's law: its connection is closed. */
void service_cut_off(struct service *service, struct session *session, const char *why);
/* The same for those of whom a page of memory is lost. */
void service_cut_off_lost(struct service *service);
/* It is left to the successor: session_leave, and the same. */
void service_leave_session(struct service *service, struct session *session);
/* Frees those that are dead and of whom the pool holds nothing any more. */
void service_bury(struct service *service);
/* Whose connection it is; NULL: nobody's. */
struct peer *service_peer_of(const struct service *service, const struct session *session);

#endif
