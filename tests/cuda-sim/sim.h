/* SPDX-License-Identifier: MIT */
/*
 * sim - a CUDA driver without a GPU: libcuda.so.1 for tests, which holds its caller to the driver's rules.
 *
 * Law. A call that breaks a documented rule ends the process with a line that says which one; an error that a correct
 * program can meet (no memory, not supported, not ready) is returned as the driver does. All commands are run by one
 * thread, one at a time, each stream in order and streams in an order that a seed decides. What is right must not
 * depend on that order:
 *
 * - Each stream has a place in a vector clock, and a command knows what it comes after: its stream's earlier commands,
 *   what the host had seen when it was given, the events and words that were waited for. A command that touches bytes
 *   that a command not before it writes (or writes what one reads) is a race, whichever ran first.
 * - What a copy brings to host memory appears there only when the host has seen its end, by an event, a stream, or a
 *   word that was written behind it; until then the bytes are NaNs.
 * - What a copy reads from host memory must still be the same when the host sees its end.
 * - Memory is given back only when the host has seen the end of all that touches it.
 * - Device memory cannot be read by the host but through the driver; it is NaNs at first.
 *
 * Everything below is under sim.lock but where noted. The files: state (this state, knobs, failures, handles), clock,
 * memory, managed and register (what the device can reach), touch (who touches what), stream (commands), capture
 * (graphs), run (the thread), the rest are the driver's calls by group.
 */
#ifndef TESTS_CUDA_SIM_SIM_H
#define TESTS_CUDA_SIM_SIM_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_LANES 64
#define SIM_DEVICES_MAX 8
#define SIM_POISON 0x7fc0cbcbu /* a NaN, as two bfloat16 a NaN and a large number, as an index out of every range */

#define SIM_EXPORT __attribute__((visibility("default")))

/* -- clocks ------------------------------------------------------------------------------------------------------- */

struct sim_clock {
	uint64_t at[SIM_LANES];
};

void sim_join(struct sim_clock *clock, const struct sim_clock *other);

/* -- memory ------------------------------------------------------------------------------------------------------- */

struct sim_access {
	uint64_t begin, end; /* as the device sees them */
	uint64_t epoch;
	uint32_t lane;
	bool write;
	const char *what; /* lives for ever */
};

struct sim_physical {
	int fd, device;
	uint64_t bytes;
	uint8_t *alias; /* where this library reads and writes it */
	unsigned mapped;
	bool released, exportable, rdma;
};

/* What the device can reach: an allocation, a mapping, or registered host memory. */
struct sim_region {
	struct sim_region *next;
	int device;
	uint64_t base, bytes; /* as the device sees it */
	uint8_t *memory;      /* as this library sees it */
	uint64_t host;        /* registered: as the host sees it; 0 in device memory */
	uint64_t room;        /* allocated: whole pages, the rest of which must stay poison */
	struct sim_physical *physical;
	bool exposed;                    /* kernels, and so the host, reach device memory now */
	bool managed;                    /* the host's and the device's at the same address */
	bool readable, writable, mapped; /* mapped: device addresses of host memory were made for kernels too */
	struct sim_access *accesses;
	uint32_t n_accesses, accesses_room;
};

struct sim_reservation {
	struct sim_reservation *next;
	uint64_t base, bytes;
};

uint64_t sim_address_new(uint64_t bytes, uint64_t align); /* addresses for the device, never given twice */
struct sim_region *sim_region_new(int device, uint64_t base, uint64_t bytes, uint8_t *memory);
void sim_region_free(struct sim_region *region, const char *call);
struct sim_region *sim_region_at(uint64_t address);                    /* of the device; NULL */
struct sim_region *sim_region_of_host(const void *host, size_t bytes); /* that has any byte of it; NULL */
struct sim_physical *sim_physical_new(int device, uint64_t bytes);
void sim_physical_drop(struct sim_physical *physical); /* once released and not mapped any more */
void sim_poison(uint8_t *memory, uint64_t bytes);
void sim_expose(bool exposed); /* for kernels: device memory at its own addresses */
void sim_check_ends(const char *what);

/* The region that holds all of it; breaks off where there is none, or where it may not be touched so. */
struct sim_region *sim_resolve(const char *call, uint64_t address, uint64_t bytes, bool write);
struct sim_region *sim_resolve_host(const char *call, const void *host, uint64_t bytes, bool write);

/* -- commands ----------------------------------------------------------------------------------------------------- */

/* One record of an event. */
struct sim_turn {
	unsigned references;
	bool done;
	struct sim_clock clock;
	uint64_t time_ns;
};

struct sim_kernel;

enum sim_op {
	SIM_COPY,
	SIM_FILL,
	SIM_KERNEL,
	SIM_RECORD,
	SIM_WAIT_EVENT,
	SIM_WAIT_VALUE,
	SIM_WRITE_VALUE,
};

struct sim_command {
	struct sim_command *next;
	enum sim_op op;
	const char *call;       /* lives for ever */
	struct sim_clock since; /* what the host had seen when it gave the command */
	uint64_t not_before_ns;
	bool dropped; /* a wait that a mutant leaves out */
	union {
		struct {
			uint64_t to, from; /* a host pointer where so said */
			bool to_host, from_host;
			uint64_t pitch, width, rows; /* the source's pitch; rows are packed where they go */
		} copy;
		struct {
			uint64_t to, count;
			uint32_t value, unit;
		} fill;
		struct {
			const struct sim_kernel *kernel;
			void *params;
			unsigned grid[3], block[3], shared;
		} launch;
		struct sim_turn *turn;
		struct {
			uint64_t word, value;
			unsigned flags;
			bool wide;
		} value;
	};
};

struct sim_capture;

struct sim_stream {
	struct sim_stream *next;
	struct sim_capture *capture; /* NULL: commands run; else they go into its ... */
	uint32_t track;              /* ... track of this number */
	int device;
	uint32_t lane;
	struct sim_clock clock;
	struct sim_command *first, **last;
	bool running; /* its first command is */
	bool doomed;  /* destroyed with work left */
};

struct sim_event {
	int device;
	unsigned flags;
	struct sim_turn *latest; /* NULL: never recorded */
	uint64_t capture;        /* that the latest record went into, by its number; 0: into none */
	uint32_t record;         /* the how-manieth of it */
};

struct sim_stream *sim_stream_new(const char *call, int device);
void sim_give(struct sim_stream *stream, const struct sim_command *command);
/* Commands of a stream that is captured: `command` is kept; a record or a wait is one of `record` of the capture. */
void sim_capture_add(struct sim_stream *stream, const struct sim_command *command, uint32_t record);
void sim_capture_record(struct sim_stream *stream, struct sim_event *event);
/* True: the wait is about a capture, and was dealt with. */
bool sim_capture_wait(struct sim_stream *stream, const struct sim_event *event, const struct sim_command *wait);
/* Whether a call that might wait for what is captured may be made by this thread. */
void sim_capture_check(const char *call);
void sim_not_captured(const char *call, const struct sim_stream *stream);
bool sim_stream_idle(const struct sim_stream *stream);
void sim_stream_forget(struct sim_stream *stream);
void sim_turn_drop(struct sim_turn *turn);
void sim_run_start(void);
void sim_run_stop(void);
void sim_words_forget(const struct sim_region *region);

/* -- who touches what --------------------------------------------------------------------------------------------- */

void sim_touch(struct sim_region *region, uint64_t begin, uint64_t bytes, bool write, const struct sim_stream *stream,
	       const char *what);
void sim_check_unused(struct sim_region *region, const char *call);
void sim_host_sees(const struct sim_clock *clock);
/* Host memory that copies have read or will be seen to have written. */
void sim_lend(const struct sim_stream *stream, const uint8_t *host, uint64_t pitch, uint64_t width, uint64_t rows);
void sim_deposit(const struct sim_stream *stream, uint8_t *host, const uint8_t *from, uint64_t bytes);
void sim_settle_range(const uint8_t *host, uint64_t bytes, bool write);

/* -- kernels ------------------------------------------------------------------------------------------------------ */

struct sim_launch {
	const unsigned *grid, *block;
	unsigned shared;
};

struct sim_range {
	uint64_t begin, bytes;
	bool write;
};

struct sim_kernel {
	const char *name;
	size_t params_bytes;
	void (*run)(const void *params, const struct sim_launch *launch);
	/* What it touches, given its parameters and what is in memory then: calls touch for each range. */
	void (*ranges)(const void *params, const struct sim_launch *launch,
		       void (*touch)(void *arg, uint64_t begin, uint64_t bytes, bool write), void *arg);
};

const struct sim_kernel *sim_kernel_find(const char *name);

/* -- state -------------------------------------------------------------------------------------------------------- */

enum sim_kind {
	SIM_STREAM = 1,
	SIM_EVENT,
	SIM_MODULE,
	SIM_FUNCTION,
	SIM_PHYSICAL,
	SIM_LIBRARY,
	SIM_GRAPH,
	SIM_GRAPH_EXEC,
};

struct sim {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a command has ended */
	pthread_cond_t work;    /* for the thread that runs them */
	pid_t pid;              /* of cuInit; 0 before */
	unsigned retained[SIM_DEVICES_MAX], contexts;
	CUresult sticky;
	struct sim_clock host; /* what the host has seen */
	struct sim_stream *streams;
	struct sim_region *regions;
	struct sim_reservation *reservations;
	unsigned live; /* handles, allocations, registrations, reservations */
	unsigned long calls, runs;
	/* knobs */
	uint64_t seed, delay_ns;
	int devices;
	bool read_only_register, same_pointers, pageable, no_dma_buf;
	const char *mutant, *log, *hang;
	char fail_call[64];
	unsigned long fail_at, run_fail_at;
	bool fail_for_ever;
};

extern struct sim sim;

/* A call begins: takes the lock, and says what it fails with before it has done anything. Calls that release or switch
 * contexts do so after a failure of the context too. */
enum sim_needs { SIM_NEEDS_NOTHING, SIM_NEEDS_INIT, SIM_NEEDS_CONTEXT, SIM_RELEASES, SIM_SWITCHES };
CUresult sim_enter(const char *call, enum sim_needs needs);
CUresult sim_leave(CUresult result);

int sim_current(void); /* device of the thread's context */
CUcontext sim_context_of(int device);
uint64_t sim_random(void);
bool sim_toss(void); /* without the lock */
uint64_t sim_now(void);
bool sim_mutant_drops(const char *call, void *caller, void *callers_caller);
_Noreturn void sim_violation(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t sim_handle_new(enum sim_kind kind, void *object);
void *sim_handle_get(const char *call, enum sim_kind kind, uint64_t handle);
void *sim_handle_end(const char *call, enum sim_kind kind, uint64_t handle);

#define SIM_GET(kind, handle) sim_handle_get(__func__, kind, (uint64_t)(uintptr_t)(handle))
#define SIM_RULE(condition, ...)                                                                                       \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			sim_violation(__func__, __VA_ARGS__);                                                          \
	} while (0)

#endif
