/* SPDX-License-Identifier: MIT */
/*
 * reader - single records of a published model, read from disk whenever they are wanted, for as long as the model is
 * served.
 *
 * The loader (loader.h) reads a whole model in the order of its files, once, and is gone. A reader stays: one thread
 * that keeps reads in flight on a ring of its own (diskring.h), and helpers that repack what it brings; all sleep while
 * nothing is wanted. A job is one record. Its sources are read in blocks (piece.h) around the page cache, into slots of
 * bounce memory, since files have no record in one piece or in its layout. Each block that comes goes to a helper;
 * whoever repacks the last one hashes the record, while the ring thread asks for what comes next.
 *
 * With each block the ring thread chooses anew: the job of the lowest rank, of several the one that was asked for
 * first. So it waits for no more than the reads that the disk already has, and the rest of a record that was hinted at
 * comes at once when it is asked for. A user who is not alone has few slots: what the disk and the helpers have of its
 * records is what another one's record waits for, whatever its rank.
 *
 * Law: what comes back without an error is the manifest's record (origin.h). A job's memory is the reader's from
 * reader_read() until the job is given back by reader_next_done(): nothing else may be put there meanwhile, whoever has
 * lost interest.
 */
#ifndef DAEMON_READER_H
#define DAEMON_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "model/model.h"
#include "moe-error.h"
#include "uapi/moe_manifest.h"

struct reader;

/* By measurement (docs/decisions/0086). */
#define READER_SHARED 2

struct reader_params {
	const char *path;                    /* the model's folder or file; copied */
	const struct moe_manifest *manifest; /* outlives the reader; its digests may be still to come (`learn`) */
	struct model *model;                 /* taken over, also on failure; NULL: opened when it is needed first */
	uint8_t *memory[MOE_POOLS_MAX];      /* of each pool file, writable */
	bool buffered;                       /* through the page cache even where O_DIRECT works */
};

struct reader_job {
	uint32_t record; /* row * n_experts + expert */
	uint64_t offset; /* in each pool file: room for the record */
	uint64_t rank;   /* the lowest is read first */
	uint32_t *slots; /* the reader's count, under its lock, of slots that jobs of one user have; NULL: of nobody */
	bool shared;     /* the user is not alone: READER_SHARED slots at most */
	bool zero;       /* the room is not all zeros, or holds more than a record of this layout */
	uint8_t *learn;  /* receives the record's digest; NULL: it has to be the manifest's */
	void *userdata;

	/* The result. */
	int status;          /* 0 or -errno, and the error's line */
	uint64_t read_bytes; /* supersets included */
	char error[512];

	struct reader_work *work; /* the reader's, and the rest */
	struct reader_job *next, *prev;
};

/* Starts the threads. -ENOMEM, -EAGAIN, or no io_uring can be had. */
int reader_new(struct reader **ret, const struct reader_params *params, struct moe_error *err);

/* Waits for what is being read; jobs that have not been given back are forgotten. Takes NULL, returns NULL. */
struct reader *reader_free(struct reader *reader);

/* Called from a thread of the reader when jobs are done; from reader_set_wake on. */
void reader_set_wake(struct reader *reader, void (*wake)(void *userdata), void *userdata);

/* The manifest with all its digests, once it is published. Before the first job that does not learn. */
void reader_set_manifest(struct reader *reader, const struct moe_manifest *manifest);

/* The job is malloc'ed and the reader's until it comes back. Never waits. */
void reader_read(struct reader *reader, struct reader_job *job);

/* The job for this room, as far as it is not read yet, has this lower rank from now on. */
void reader_hurry(struct reader *reader, uint64_t offset, uint64_t rank);

/* A job that is done, the caller's again (free it), or NULL. With `wait`: NULL only when none is under way. */
struct reader_job *reader_next_done(struct reader *reader, bool wait);

/* With no job under way: 0 when all files that were read still are what was opened (shardfile.h). */
int reader_check_files(const struct reader *reader, struct moe_error *err);

/* True while every file that was read was read around the page cache. */
bool reader_direct(const struct reader *reader);

#endif
