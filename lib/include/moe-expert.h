/* SPDX-License-Identifier: MIT */
/*
 * moe-expert.h - the client library of moe-expertd, linked into each serving worker.
 *
 * A worker opens the daemon's socket, attaches to a loaded model as one rank of its tensor-parallel group, and then,
 * for each MoE layer of each step:
 *
 *     moe_plan()    topk ids -> which pair is computed where, what is copied     (no I/O, deterministic)
 *     moe_submit()  starts the copies, the CPU pool's share and the device's share; returns at once
 *     moe_wait()    y = device part + CPU part
 *
 * Shapes: x and y are [tokens][hidden] float, row-major; ids are [tokens][topk] int32 expert numbers; weights are
 * [tokens][topk] float. With tp_size > 1, y is this rank's partial sum: add the ranks' y to get the layer's output.
 *
 * Errors: 0 or a negative errno value; struct moe_error (may be NULL) receives one line of text. -EPIPE means that the
 * daemon is gone; no wait outlives the daemon. Threads: a client and its sessions may be used from several threads, one
 * call per layer at a time; moe_plan and moe_submit of one layer must be called in step order. Nothing here calls exit,
 * abort (but for broken invariants of its own in debug builds) or writes to a terminal.
 */
#ifndef MOE_EXPERT_H
#define MOE_EXPERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_EXPERT_VERSION "0.1.0"
#define MOE_SOCKET_DEFAULT "/run/moe-expertd/socket"

/* -- connection --------------------------------------------------------------------------------------------------- */

struct moe_client;
struct moe_session;
struct moe_plan;
struct moe_step;
struct moe_stream;

/* Connects to `socket` (NULL: $MOE_EXPERTD_SOCKET, else MOE_SOCKET_DEFAULT). */
int moe_open(struct moe_client **ret, const char *socket, struct moe_error *err);

/*
 * A daemon that is stopped, or hangs, is connected to all the same: its kernel does it. So calls on a client wait as
 * long as the daemon takes, unless the client was opened by moe_open_patient: then until there was no word (an answer,
 * or the progress of a load or a recording) for silent_ms: -ETIMEDOUT. What was asked for may be done all the same;
 * the next call connects again. Of a session it is watchdog_ms that says so. patience NULL, or silent_ms 0: moe_open.
 */
struct moe_patience {
	size_t size; /* sizeof(struct moe_patience) */
	uint32_t silent_ms;
	/* NULL, or called each time so long has passed, by the thread that waits, which makes no call on this client
	 * from here: whether to wait for as long again. */
	bool (*wait_on)(void *userdata);
	void *userdata;
};

int moe_open_patient(struct moe_client **ret, const char *socket, const struct moe_patience *patience,
		     struct moe_error *err);

/* Closes the connection; sessions must be detached first. Takes NULL, returns NULL. */
struct moe_client *moe_close(struct moe_client *client);

enum moe_document {
	MOE_DOCUMENT_STATUS = 1,
	MOE_DOCUMENT_STATS = 2,
	MOE_DOCUMENT_MODELS = 3,
	MOE_DOCUMENT_SESSIONS = 4,
	MOE_DOCUMENT_HEAT = 5
};

/* One of the daemon's JSON documents; *ret is malloc'ed and NUL-terminated. */
int moe_query(struct moe_client *client, enum moe_document what, char **ret, struct moe_error *err);

struct moe_progress {
	uint64_t done_bytes, total_bytes, elapsed_ns, eta_ns;
};

/* Loads the Hugging Face folder `path` (absolute; read by the daemon's user) under `name` (NULL: the folder's name).
 * Returns when it is loaded; `progress` (may be NULL) is called from this thread meanwhile. */
int moe_load(struct moe_client *client, const char *path, const char *name,
	     void (*progress)(const struct moe_progress *, void *userdata), void *userdata, struct moe_error *err);

/* -EBUSY while sessions are attached. */
int moe_unload(struct moe_client *client, const char *name, struct moe_error *err);

/* Of a tiered model ("": the only model): by what its experts make room for each other from now on. For root and the
 * daemon's user. */
int moe_set_policy(struct moe_client *client, const char *name, const char *policy, struct moe_error *err);

/* A model's heat, which lasts over sessions and daemons, begins anew ("": the only model). For root and the daemon's
 * user. */
int moe_forget_heat(struct moe_client *client, const char *name, struct moe_error *err);

/*
 * Records what the routers of attached sessions choose (moe-trace(5)) into the file, empty and open for writing, until
 * a limit is met, moe_trace_stop is called on another client, or this connection ends. -EBUSY while somebody records.
 * progress: bytes written, of at most so many.
 */
enum moe_trace_ending { MOE_TRACE_END_STOPPED, MOE_TRACE_END_STEPS, MOE_TRACE_END_TIME, MOE_TRACE_END_BYTES };

struct moe_trace_params {
	size_t size;                           /* sizeof(struct moe_trace_params) */
	const char *model;                     /* NULL: the sessions of all models */
	uint64_t max_bytes, max_steps, max_ms; /* 0: 1 GiB; no limit of steps; no limit of time */
};

struct moe_trace_result {
	uint64_t bytes, routes;
	uint64_t steps; /* of the session that has most */
	uint64_t lost;  /* routes that are not in the file */
	uint32_t sessions;
	enum moe_trace_ending end;
};

int moe_trace(struct moe_client *client, int fd, const struct moe_trace_params *params,
	      void (*progress)(const struct moe_progress *, void *userdata), void *userdata,
	      struct moe_trace_result *ret, struct moe_error *err);
int moe_trace_stop(struct moe_client *client, struct moe_error *err);

/* -- session ------------------------------------------------------------------------------------------------------ */

enum moe_mode {
	MOE_MODE_AUTO,     /* DECODE for one token or with dual_batch, else PREFETCH */
	MOE_MODE_DECODE,   /* fills go to cache slots for this step; the CPU computes the rest at once */
	MOE_MODE_PREFETCH, /* up to n_copy missing experts, hottest first, go to free cache slots, then to
			    * miss buffer layer % 2; the CPU computes what is left */
	MOE_MODE_FULL      /* PREFETCH whose n_copy covers every expert */
};

enum moe_fill { MOE_FILL_PUSH, MOE_FILL_PULL };         /* who copies: the daemon, or the device from the mapped pool */
enum moe_share { MOE_SHARE_PART, MOE_SHARE_GROUP };     /* CPU part: each rank its slice, or rank 0 whole experts */
enum moe_n_copy { MOE_N_COPY_COST, MOE_N_COPY_STAIRS }; /* measured cost model, or the original's staircase */

/*
 * Zero copy: an expert of few pairs is read by the device where it lies in the pool, under a lease and without a slot;
 * the same bits come out. MOE_FILL_PULL only. OFF is what is measured to be good; the others are for devices whose link
 * to the host's memory is fast, and for trying it out.
 */
enum moe_zero_copy {
	MOE_ZERO_COPY_OFF,
	MOE_ZERO_COPY_COST,  /* where the cost model expects that a slot would serve it no better, and beside the CPU */
	MOE_ZERO_COPY_ALWAYS /* whatever may be read so; plans fill no slots with it */
};

/*
 * Where the device reads the host's memory by its page tables (GH200 and the like), and with zero copy: what its driver
 * is told of the pool's pages. Only advice: the same bits come out, and where the driver refuses, the pool is read as
 * it lies and moe_session_info.device says so. Never run on such a machine.
 */
enum moe_pages {
	MOE_PAGES_PLAIN,   /* nothing */
	MOE_PAGES_ADVISE,  /* when attached: they are mostly read, by this device too, and their home is the host */
	MOE_PAGES_PREFETCH /* that, and in front of each read, that the expert's pages go to the device */
};

/* How the CPU's part joins a y in the device's memory (moe_submit_on, lanes): the kernel that adds it reads it in the
 * host's memory, or a copy brings it to the device first. The same bits come out. */
enum moe_answers { MOE_ANSWERS_READ, MOE_ANSWERS_COPY };

/* A GPU's driver registers the pool files; one process on the host does so at a time. */
struct moe_registering {
	int64_t holder; /* the process that registers: this one, or who is waited for; 0: it cannot be seen from here */
	uint64_t done_bytes, total_bytes; /* by this process */
	uint64_t elapsed_ns;              /* of the waiting, then of the registering */
};

struct moe_attach_params {
	size_t size;               /* sizeof(struct moe_attach_params) */
	const char *model;         /* name; NULL: the only model loaded, or the one with this digest */
	const uint8_t *digest;     /* 16 bytes or NULL */
	uint32_t tp_rank, tp_size; /* tp_size 0 means 1 */
	uint32_t dp_rank, ep_rank;
	uint64_t group;             /* the same on all ranks of a replica; 0: a group of one */
	uint32_t entries;           /* queue entries, 0: 256 */
	uint32_t max_tokens;        /* per step, 0: 512 */
	uint32_t max_steps;         /* steps in flight (micro-batches), 0: 2 */
	uint32_t cache_expert_num;  /* slots per layer; 0: no slots, everything on the CPU; at most n_experts */
	uint32_t cache_topk;        /* `original`: a token's first choices that count as touches, 0: 2 */
	uint32_t update_expert_num; /* decode: fills per layer and step at most, 0: 2 */
	uint32_t miss_expert_num;   /* experts per miss buffer; 0: all that are not cached */
	const char *policy;         /* which slot is given up: "ema" (NULL), "lru", ...: moe_attach(3) */
	const char *device;         /* "host" (NULL), "cuda", "cuda:N", "auto": a GPU if there is one */
	enum moe_fill fill;
	enum moe_share
		share; /* MOE_SHARE_GROUP: all ranks must plan alike, so n_copy is MOE_N_COPY_STAIRS or set_n_copy */
	enum moe_n_copy n_copy; /* MOE_MODE_PREFETCH only */
	bool dual_batch;        /* MOE_MODE_AUTO takes the decode path whatever the number of tokens */
	/* Approximate, it changes results; 0: off. In decode steps, of each token's experts the so many weakest wait
	 * for the next MoE layer if the CPU computes them (see moe_submit_carry); at most top-k - 1. */
	uint32_t approximate_defer;
	/* What the copies of one step may take, from its submission on, and the answer that moe_phase, moe_nop,
	 * moe_hint and moe_cancel wait for; moe_agree waits agree_ms longer. Then the daemon is given up: -ETIME, and
	 * the session is at its end. 0: 30000. */
	uint32_t watchdog_ms;
	/* Pool files are registered with a GPU's driver in pieces of whole records, of so many bytes at most or one
	 * record; 0: 8 GiB. */
	uint64_t register_bytes;
	uint32_t lanes;       /* for captured streams (moe_lane_submit), at most 32; 0: none */
	uint32_t lane_tokens; /* of a step on a lane, at most 512; 0: 64, or max_tokens if that is less */
	/* Sessions of one user that fill one device's memory and give it the same number here share one budget of the
	 * daemon for fills (--fill-budget); 0: the session has one of its own. */
	uint64_t device_id;
	/* How long another process that registers is waited for: then -EBUSY. 0: 600000. */
	uint32_t register_wait_ms;
	/* NULL, or called by the thread that attaches: every second while it waits, then after each piece. */
	void (*register_progress)(const struct moe_registering *, void *userdata);
	void *register_userdata;
	enum moe_zero_copy zero_copy; /* not with MOE_SHARE_GROUP, but for MOE_ZERO_COPY_ALWAYS */
	enum moe_answers answers;     /* MOE_ANSWERS_COPY takes device memory for x of each step and lane */
	enum moe_pages pages;         /* but for MOE_PAGES_PLAIN: with zero_copy, and such a device, else -EOPNOTSUPP */
	/* Data-parallel ranks of the group on this host that agree on the phase of each step (moe_agree), times tp_size
	 * at most 64; 0: this one takes no part. How long it waits for another, which is given up then; 0: 10000, at
	 * most 600000. */
	uint32_t dp_size, agree_ms;
	/* So many of the next MoE layer's experts are guessed from what has been routed, and announced as by moe_hint;
	 * 0: none. Never changes results. 8 * n_experts^2 bytes a layer; not with dual_batch. */
	uint32_t predict;
	/* Of so many layers, evenly spread, it is counted what caches of other sizes and policies would have found; 0:
	 * none. Never changes results. */
	uint32_t ghost_layers;
	/* The caches begin with the model's hottest experts, as far as the daemon knows of any: moe_attach fills the
	 * slots with them. Never changes results. */
	bool warm;
	/* How requests reach the daemon: "ring", shared memory, the fastest; "kmod", the queue of the kernel module,
	 * without memory that both sides write; "kmod-ioctl", the same without io_uring; "auto", kmod where it can be
	 * had. NULL: what MOE_TRANSPORT in the environment says, else "ring". -EOPNOTSUPP: there is no such queue. */
	const char *transport;
};

struct moe_session_info {
	char model[64];
	uint8_t digest[16];
	uint64_t session, epoch;
	uint32_t n_layers, n_moe_layers, n_experts, topk, hidden, inter;
	uint32_t slice_inter; /* this session's share of inter; layers of other formats may have one unit less */
	uint32_t cache_slots, miss_slots, cpu_threads;
	uint64_t record_bytes, slot_bytes;
	const int32_t *layer_index; /* [n_layers]: row of the layer, -1 for a dense one; lives as long as the session */
	const char *device;         /* one line on what computes on the slots, "" without any; the same (see pages) */
};

int moe_attach(struct moe_client *client, struct moe_session **ret, const struct moe_attach_params *params,
	       struct moe_error *err);
void moe_session_info(const struct moe_session *session, struct moe_session_info *ret);

/* Where the numbers of an expert lie in a slot: planes, as moe-manifest(7) says for each format. */
#define MOE_SLOT_PARTS 3  /* gate, up, down */
#define MOE_SLOT_PLANES 4 /* codes, scales, row scales, bias */

struct moe_slot_plane {
	uint64_t offset; /* in the slot, a multiple of 64 */
	uint64_t pitch;  /* bytes from row to row of the plane: rows of numbers, or bands of 16 rows */
	uint64_t width;  /* bytes of such a row that are in use */
	uint64_t rows;   /* how many; 0: this plane is absent */
};

struct moe_slot_part {
	const char *format_name; /* e.g. "fp8-block"; static */
	uint32_t format;         /* its number in moe-manifest(7) */
	uint32_t rows, cols;     /* of the slice: gate and up [inter][hidden], down [hidden][inter] */
	struct moe_slot_plane plane[MOE_SLOT_PLANES];
};

struct moe_slot_layout {
	uint64_t bytes;        /* in use, at most moe_session_info.slot_bytes */
	uint32_t first, inter; /* the slice's share of the intermediate dimension of this layer */
	struct moe_slot_part part[MOE_SLOT_PARTS];
};

/* How this session's slots of one layer are laid out. -EINVAL: no such layer. */
int moe_slot_layout(const struct moe_session *session, uint32_t layer, struct moe_slot_layout *ret,
		    struct moe_error *err);

/* All slots of the session as one dma-buf, for NICs and peers. */
struct moe_slots_dmabuf {
	int fd; /* the caller's, who closes it */
	/* How many there are. moe_slot_number says which of them a cache slot is; the two miss buffers, of miss_slots
	 * each, begin at number n_moe_layers * cache_slots. */
	uint32_t slots;
	uint64_t offset; /* of slot 0 in the dma-buf; slot i is at offset + i * slot_bytes (moe_slot_layout) */
	uint64_t slot_bytes;
	uint64_t bytes; /* of the dma-buf */
};

/*
 * The buffer is the slots themselves, not a copy: what lies in them is changed by steps and fills, so a reader orders
 * itself behind moe_wait, and writes nothing. Each call makes a new fd; whoever has imported one lets go of it before
 * moe_detach, after which it is of nobody's memory. Any thread. *ret is written on success only.
 * -ENOTSUP: a session without slots; -EOPNOTSUPP: the device (as `host`), its driver or its kernel module has no
 * dma-buf for such memory.
 */
int moe_slots_dmabuf(struct moe_session *session, struct moe_slots_dmabuf *ret, struct moe_error *err);

/* Where a layer's cache slot lies: its number among all slots. A fill goes to another place, and the slot is there from
 * moe_submit (or moe_fill) on. Any thread. *ret is written on success only. -EINVAL: no such layer or slot. */
int moe_slot_number(struct moe_session *session, uint32_t layer, uint32_t slot, uint32_t *ret, struct moe_error *err);

/* The digest of one expert's record: XXH3-128 in canonical form of gate [inter][hidden], up, down [hidden][inter] as
 * the daemon holds them (moe-manifest(7)), so that a worker can prove that its own files are the ones that are
 * served. -EINVAL: no such layer or expert. */
int moe_record_digest(const struct moe_session *session, uint32_t layer, uint32_t expert, uint8_t ret[16],
		      struct moe_error *err);

/* Waits for what is in flight, gives everything back. Takes NULL, returns NULL. */
struct moe_session *moe_detach(struct moe_session *session);

/* -- step --------------------------------------------------------------------------------------------------------- */

struct moe_copy {
	int32_t expert;
	int32_t slot; /* 0 .. cache_slots-1: a cache slot; from there on miss_slots places in miss buffer layer % 2 */
};

struct moe_plan_view {
	enum moe_mode mode; /* never MOE_MODE_AUTO */
	uint32_t layer, tokens, topk, n_copy;
	const int32_t *cpu_topk_ids; /* [tokens][topk]: the expert when the CPU computes this pair, else -1 */
	/* [n_experts]: slot of the expert for the device part of this step, or -1; from cache_slots + miss_slots on:
	 * the device reads it in the pool. */
	const int32_t *expert_map;
	const struct moe_copy *copy_map;
	uint32_t n_copies;
	uint64_t pairs_hit, pairs_miss_buffer, pairs_cpu, pairs_resident;
	const int32_t *deferred_topk_ids; /* [tokens][topk]: as cpu_topk_ids, the pairs that wait; NULL: none do */
	uint64_t pairs_deferred;          /* they are in no other number */
	uint64_t pairs_pool;              /* of experts that the device reads in the pool ... */
	uint32_t n_reads;                 /* ... so many */
};

/*
 * Decides one layer of one step and updates the layer's cache maps. ids outside 0 .. n_experts-1 are -EINVAL, except
 * -1: a pair that nobody computes (padding). An expert may stand once per token. The plan is freed by moe_submit (which
 * always takes it over) or by moe_plan_free, which takes back what it promised about the cache: later plans that
 * counted on it are -ESTALE. Both before moe_detach. tokens * topk are at most 1048576.
 */
int moe_plan(struct moe_session *session, uint32_t layer, enum moe_mode mode, uint32_t tokens, uint32_t topk,
	     const int32_t *ids, const float *weights, struct moe_plan **ret, struct moe_error *err);
void moe_plan_view(const struct moe_plan *plan, struct moe_plan_view *ret);
struct moe_plan *moe_plan_free(struct moe_plan *plan);

/* Fixes n_copy for the next prefetch plans (UINT32_MAX: back to the rule), e.g. to what rank 0 chose. */
void moe_set_n_copy(struct moe_session *session, uint32_t n_copy);

/* x is copied before the call returns. At most max_steps steps may be unwaited: -EBUSY. -ESTALE: the plan counts on
 * a slot whose fill has failed, or on a plan that was not submitted, or a moe_prefetch was given a slot that it fills
 * after it was made; plan the step again. -EINVAL: it defers pairs, which moe_submit_carry is for. */
int moe_submit(struct moe_session *session, struct moe_plan *plan, const float *x, struct moe_step **ret,
	       struct moe_error *err);

/*
 * moe_submit for a worker that computes on the session's device: x and y are its device addresses (device `host`: host
 * addresses), multiples of 16, of [tokens][hidden] float, which do not overlap; `stream` is a CUstream, which
 * cudaStream_t is too, of the primary context, or what moe_stream_handle says. The step begins after all that was given
 * to the stream before, and what is given to it later begins after the step; no thread waits for either. Then y is
 * whole, if moe_wait says 0, and x may be overwritten. The stream and both arrays stay until moe_wait has ended the
 * step, which writes no y of its own, or until moe_detach if the device has failed.
 * Steps run in the order of their submission, whichever streams they are on.
 * -EINVAL: a default stream, one that is being captured, or one of another context; x or y that are not like that; a
 * plan that defers pairs. -ENOTSUP: a session without slots.
 */
int moe_submit_on(struct moe_session *session, struct moe_plan *plan, uintptr_t stream, uint64_t x, uint64_t y,
		  struct moe_step **ret, struct moe_error *err);

/* A stream of the session's device, for who has none. All are freed before the session is detached. */
int moe_stream_new(struct moe_session *session, struct moe_stream **ret, struct moe_error *err);
uintptr_t moe_stream_handle(const struct moe_stream *stream);
/* Waits for all that was given to the stream. timeout_ms 0: no limit; -ETIMEDOUT. */
int moe_stream_wait(struct moe_stream *stream, uint32_t timeout_ms, struct moe_error *err);
struct moe_stream *moe_stream_free(struct moe_stream *stream); /* waits too; takes NULL, returns NULL */

/*
 * Lanes: steps that can be captured in a graph and replayed, as a lane's memory and what its steps give to a stream are
 * always the same. ids and weights are the device's too; what lies in the cache slots is computed by the device, all
 * else by the CPU pool: at each replay the ids decide.
 *
 * A lane is for one stream at a time: streams side by side need one for each micro-batch and parity of its layers.
 * moe_lanes_fix takes the caches as they are (-EBUSY: steps are in flight, or plans not submitted). Until
 * moe_lanes_release nobody leaves a cache slot, so MOE_MODE_DECODE plans fill none, and moe_fill and moe_prefetch are
 * -EBUSY. The same graphs may be replayed after another moe_lanes_fix. No stream is on a lane when either of the two is
 * called, nor at moe_detach.
 */
struct moe_lane_step {
	size_t size;      /* sizeof(struct moe_lane_step) */
	uint32_t lane;    /* 0 .. lanes - 1 */
	uint32_t layer;   /* the model's own number */
	uint32_t tokens;  /* at most lane_tokens */
	uint32_t topk;    /* at most the model's */
	uintptr_t stream; /* as for moe_submit_on; it may be being captured */
	uint64_t x;       /* float [tokens][hidden]; as all four a device address, a multiple of 16 */
	uint64_t ids;     /* int32 [tokens][topk], -1: nobody computes this pair */
	uint64_t weights; /* float [tokens][topk] */
	uint64_t y;       /* float [tokens][hidden], written whole; not over x */
};

int moe_lanes_fix(struct moe_session *session, struct moe_error *err);
void moe_lanes_release(struct moe_session *session);

/* Gives the step to the stream; -EINVAL: out of range, no map is fixed, or no such stream. */
int moe_lane_submit(struct moe_session *session, const struct moe_lane_step *step, struct moe_error *err);

/* Once the stream has been waited for: 0, or the first error of the lane's steps since it was asked last; then y is
 * nothing. A stream waits for the daemon for watchdog_ms at most: -ETIME, and the session is at its end. */
int moe_lane_error(struct moe_session *session, uint32_t lane, struct moe_error *err);

/*
 * Approximate. moe_submit for a session with approximate_defer, once per MoE layer and in their order: the pairs that
 * the plan defers are submitted beside the step, as a step of their own, and stored in *carry (NULL: there are none, as
 * always in the last MoE layer and where moe_phase has not said decode). So the CPU works on them while the worker is
 * on its way to the next MoE layer, whose call takes *carry over in every case: that layer's y is device part + CPU
 * part + what was carried. Whoever stops on the way ends it with moe_wait(*carry, NULL, 0, NULL).
 * -EINVAL: *carry is not of the MoE layer before this one, or of other tokens.
 */
int moe_submit_carry(struct moe_session *session, struct moe_plan *plan, const float *x, struct moe_step **carry,
		     struct moe_step **ret, struct moe_error *err);

/* Waits for the step and what it carries, writes y [tokens][hidden] unless it is NULL, frees both in every case.
 * timeout_ms 0: as long as the daemon lives. After an error y is not written. NULL is no step: 0. */
int moe_wait(struct moe_step *step, float *y, uint32_t timeout_ms, struct moe_error *err);

/* All pairs on the CPU pool, without plan or slots: submit and wait in one call. */
int moe_compute(struct moe_session *session, uint32_t layer, uint32_t tokens, uint32_t topk, const int32_t *ids,
		const float *weights, const float *x, float *y, struct moe_error *err);

/* Brings one expert into a cache slot now and waits (warm start). */
int moe_fill(struct moe_session *session, uint32_t layer, uint32_t expert, uint32_t slot, struct moe_error *err);

/*
 * Brings n experts (1 to all slots) of a layer into cache slots on a guess, behind all other work of the daemon, and
 * returns at once. Whoever is in these slots leaves them now. moe_wait(*ret, NULL, ...) ends it as any step, and it
 * counts as one of max_steps: what has come is cached from then on, 0 says that all has. No result depends on it.
 * A guess is about the layer's next step: when that is submitted (unless it is a dummy one, or with dual_batch), what
 * it does not ask for and has not come is taken back, as by moe_cancel.
 * -EINVAL: experts or slots out of range, or one of them twice; -EEXIST: an expert is cached already; -EBUSY: a step in
 * flight reads or fills the slots of this layer, or one is another prefetch's; -ENOTSUP: MOE_FILL_PULL, or
 * MOE_SHARE_GROUP, whose ranks must cache alike, and what comes in time is not alike.
 */
int moe_prefetch(struct moe_session *session, uint32_t layer, const struct moe_copy *copies, uint32_t n,
		 struct moe_step **ret, struct moe_error *err);

/* Of what moe_prefetch has begun: takes back what has not come, but for these experts (n 0: keeps none of it, `keep`
 * may be NULL). Not while another thread is in moe_wait for it; that is still to be called, and says -ECANCELED when
 * something was taken back. -EINVAL: any other step. */
int moe_cancel(struct moe_step *step, uint32_t n, const int32_t *keep, struct moe_error *err);

/* Round trip through the daemon without work. */
int moe_nop(struct moe_session *session, struct moe_error *err);

/* Experts that this layer will probably ask for; never changes results. */
int moe_hint(struct moe_session *session, uint32_t layer, uint32_t n, const int32_t *ids, struct moe_error *err);
/* The same, with how probable each of them is, 0 to 1 (weights[n]; NULL: moe_hint): of a tiered model the most probable
 * are read ahead first, and those below 1/8 only while nothing else is. A daemon that is older takes them for alike. */
int moe_hint_weighted(struct moe_session *session, uint32_t layer, uint32_t n, const int32_t *ids, const float *weights,
		      struct moe_error *err);

enum moe_step_phase { MOE_STEP_NONE = 0, MOE_STEP_PREFILL = 1, MOE_STEP_DECODE = 2 };

/* Tells the daemon which step begins; a dummy step's requests count nowhere. */
int moe_phase(struct moe_session *session, enum moe_step_phase phase, uint64_t step, bool dummy, struct moe_error *err);

struct moe_agreement {
	enum moe_step_phase phase; /* MOE_STEP_NONE: no rank has work */
	bool dummy;                /* this rank did not wish this phase: it runs a dummy step of it */
	uint32_t tokens;           /* the most that a rank has of this phase */
	uint64_t step;             /* 1, 2, 3, ...: the same on all ranks */
};

/*
 * The phase of the next step, agreed on with the other data-parallel ranks of the group on this host (dp_size, each of
 * which calls this once a step): prefill if one of them wishes it, else decode if one does. `tokens`: of the wish,
 * MOE_STEP_NONE with 0 is no work. It waits for the last rank, and is then as moe_phase with that phase, step and
 * dummy. One thread of a session at a time.
 *
 * -EOWNERDEAD: ranks that *err names have ended, or have not come for agree_ms: there is no agreement on this step, for
 * none of the ranks; from the next call on the others agree without them. -ESTALE: it was this rank that did not come;
 * its next call takes part again. Both leave the session as it was. -ETIME: the daemon has not answered for agree_ms
 * and watchdog_ms, and the session is at its end.
 */
int moe_agree(struct moe_session *session, enum moe_step_phase wish, uint32_t tokens, struct moe_agreement *ret,
	      struct moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
