/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues and the requests in them. queue.c says what a queue is and who serves
 * it, share.c what part of it a user may have, request.c what becomes of a
 * request, uring.c how io_uring says it.
 */
#ifndef MOE_QUEUE_H
#define MOE_QUEUE_H

#include "moe_expert.h"

struct io_uring_cmd;

enum moe_tag_state {
	MOE_TAG_FREE,
	MOE_TAG_FETCHES, /* a command of io_uring waits for a request */
	MOE_TAG_TELLS,	 /* the daemon is being told of its request */
	MOE_TAG_WORKS	 /* the daemon knows its request */
};

/**
 * struct moe_tag - one request that the daemon works on, or can
 * @in: the queue's tags that fetch
 * @state: enum moe_tag_state
 * @turn: grows with every request that it gets, and when it loses one
 * @request: in TELLS and WORKS
 * @cmd: in FETCHES, and in TELLS if it came by io_uring
 */
struct moe_tag {
	struct list_head in;
	u32 state;
	u32 turn;
	struct moe_request *request;
	struct io_uring_cmd *cmd;
};

/**
 * struct moe_queue - where clients' requests wait for a daemon
 * @list: in moe_queues by id; in no list once it has ended
 * @id: grows, is never used again
 * @refs: one for moe_queues, one for each FETCH of io_uring
 * @owner: who made it
 * @server: who fetches; NULL: it is parked
 * @ends: when it does, in jiffies, if it is parked and has @recover_ms
 * @recover_ms: how long it waits for somebody to serve it; 0: for ever
 * @again: requests that a daemon had fetched, by seq: before all others
 * @shares: of users that have requests in it, by moe_share.in
 * @turns: of users that have requests waiting, by moe_share.turn
 * @fetching: tags, by moe_tag.in
 * @waiting: requests in @again and of the users in @turns
 * @fetched: requests that have tags
 * @name: as the daemon said
 * @depth: number of @tags
 */
struct moe_queue {
	struct list_head list;
	u32 id;
	u32 refs;
	kuid_t owner;
	struct moe_client *server;
	unsigned long ends;
	u32 recover_ms;
	struct list_head again;
	struct list_head shares;
	struct list_head turns;
	struct list_head fetching;
	u32 waiting;
	u32 fetched;
	char name[MOE_KMOD_NAME];
	u32 depth;
	struct moe_tag tags[];
};

/**
 * struct moe_share - one user's part in a queue
 * @in: in its queue's shares, in no list once that has ended
 * @turn: in its queue's turns
 * @clients: that have requests waiting, by moe_client.turn
 * @uid: the user, as the clients were when they opened the device
 * @refs: requests of the user's in the queue
 * @fetched: those that have tags
 */
struct moe_share {
	struct list_head in;
	struct list_head turn;
	struct list_head clients;
	kuid_t uid;
	u32 refs;
	u32 fetched;
};

enum moe_request_at {
	MOE_REQUEST_WAITS,   /* in its client's waiting */
	MOE_REQUEST_AGAIN,   /* in its queue's again */
	MOE_REQUEST_FETCHED, /* has a tag */
	MOE_REQUEST_ANSWERED /* is its client's, to be reaped or on its way */
};

/**
 * struct moe_request - one SUBMIT
 * @by_client: in its client's requests, in no list when that has gone
 * @in: the list that @at says
 * @notice: in moe_notices, of an orphan
 * @refs: one until it is answered and taken, one for its notice, one for the
 *	answer of io_uring that is on its way
 * @at: enum moe_request_at
 * @tag: when it is fetched
 * @flags: enum moe_kmod_fetched_flag
 * @queue: NULL once it is answered
 * @share: its user's, until it is freed
 * @client: NULL once nobody waits for it
 * @cmd: of io_uring, NULL once its answer is on its way, and without
 * @to: where its answer is to be written, of io_uring
 * @tgid: of the process that submitted it
 * @uid: who that was when it opened the device
 * @client_id: of @client
 * @seq: grows, is never used again
 * @lease: what it stands on, and of that lease, when it was checked:
 * @pool: its pool
 * @epoch: of the pool
 * @offset: where the range begins
 * @bytes: how long it is
 * @body: as it was checked
 * @answer: as it was committed, or ECANCELED; an orphan's is never committed
 */
struct moe_request {
	struct list_head by_client;
	struct list_head in;
	struct list_head notice;
	u32 refs;
	u32 at;
	u32 tag;
	u32 flags;
	struct moe_queue *queue;
	struct moe_share *share;
	struct moe_client *client;
	struct io_uring_cmd *cmd;
	u64 to;
	struct pid *tgid;
	kuid_t uid;
	u64 client_id;
	u64 seq;
	u64 lease;
	u64 pool;
	u64 epoch;
	u64 offset;
	u64 bytes;
	struct moe_kmod_request body;
	struct moe_kmod_answer answer;
};

/* All with moe_lock held, but for what is a command's (struct moe_call). */
struct moe_queue *moe_queue_find(u32 id);
void moe_queue_put(struct moe_queue *queue);

/* Gives waiting requests to tags that fetch, or tells who polls. */
void moe_queue_kick(struct moe_queue *queue);

/* The answer of io_uring was told, or cannot be: then it is to be reaped. */
void moe_request_told(struct moe_request *request, bool told);

/* What a request says to the daemon that is told of it. */
void moe_request_describe(const struct moe_request *request,
			  struct moe_kmod_fetched *to);

/* Whether there is a request that may be fetched now. */
bool moe_queue_ready(struct moe_queue *queue);

/*
 * The next request that is to be fetched, out of its list, or NULL; with @all
 * also those whose users have no right to a tag now.
 */
struct moe_request *moe_request_next(struct moe_queue *queue, bool all);

/* The tag has it from now on. */
void moe_request_fetch(struct moe_queue *queue, struct moe_tag *tag,
		       struct moe_request *request);

/* The tag loses its request, which is to be fetched again. */
void moe_request_again(struct moe_queue *queue, struct moe_tag *tag, u32 flags);

/* Its end: whoever waits for it is answered so. */
void moe_request_answer(struct moe_request *request,
			const struct moe_kmod_answer *answer);

/* Its client does not wait for it any more. */
void moe_request_drop(struct moe_request *request);
void moe_request_put(struct moe_request *request);

/* Without moe_lock: NULL without memory; kfree what was not used. */
struct moe_share *moe_share_new(kuid_t uid);

/* For one request more: the user's, else the spare one, else NULL. */
struct moe_share *moe_share_get(struct moe_queue *queue, kuid_t uid,
				struct moe_share **spare);
void moe_share_put(struct moe_share *share);

/* The client has requests waiting; and it has none any more. */
void moe_share_wait(struct moe_queue *queue, struct moe_share *share,
		    struct moe_client *client);
void moe_share_rest(struct moe_share *share, struct moe_client *client);

/* Whose turn it is, of those who have a right to a tag, or of @all; or NULL. */
struct moe_share *moe_share_turn(struct moe_queue *queue, bool all);

/*
 * Without moe_lock. Who fetches by @file gets what the tag has at @to, if it
 * still is the tag's @turn: ECANCELED otherwise. EFAULT puts the request back,
 * and EPERM, of who is the keeper no more.
 */
long moe_queue_tell(struct file *file, struct moe_queue *queue, u32 tag,
		    u32 turn, u64 to);

/* What FETCH, COMMIT and SUBMIT are, whichever way they came. */
long moe_queue_fetch(struct moe_call *call, struct io_uring_cmd *cmd);

/* With @cmd COMMIT_AND_FETCH: both, or neither. */
long moe_queue_commit(struct moe_call *call, struct io_uring_cmd *cmd);
long moe_request_submit(struct moe_call *call, struct io_uring_cmd *cmd, u64 to);

#ifdef MOE_HAVE_URING
/* A command that waits goes on in its own task: told, answered, or cancelled. */
void moe_uring_fetch(struct io_uring_cmd *cmd, struct moe_queue *queue, u32 tag,
		     u64 to);
void moe_uring_submit(struct io_uring_cmd *cmd, struct moe_request *request);
void moe_uring_tell(struct io_uring_cmd *cmd, u32 turn);
void moe_uring_cancel(struct io_uring_cmd *cmd);
void moe_uring_answer(struct moe_request *request);
#else
static inline void moe_uring_fetch(struct io_uring_cmd *cmd,
				   struct moe_queue *queue, u32 tag, u64 to)
{
}

static inline void moe_uring_submit(struct io_uring_cmd *cmd,
				    struct moe_request *request)
{
}

static inline void moe_uring_tell(struct io_uring_cmd *cmd, u32 turn)
{
}

static inline void moe_uring_cancel(struct io_uring_cmd *cmd)
{
}

static inline void moe_uring_answer(struct moe_request *request)
{
}
#endif

#endif
