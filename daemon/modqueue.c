/* SPDX-License-Identifier: MIT */
#include "daemon/modqueue.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/ringsrv.h"

#define RECOVER_MS 60000 /* for how long clients wait for a successor: then they are told */
#define FETCHES_TURN 32  /* before rings and the pool have their turn */

static int command(const struct modqueue *m, unsigned long number, void *arg)
{
	return m->ops->command(m->source.fd, number, arg) < 0 ? -errno : 0;
}

/* -- tags --------------------------------------------------------------------------------------------------------- */

static uint32_t number_of(const struct modqueue *m, const struct modqueue_tag *tag)
{
	return (uint32_t)(tag - m->tags);
}

static int make_tags(struct modqueue *m)
{
	m->tags = calloc(m->depth, sizeof *m->tags);
	if (!m->tags)
		return -ENOMEM;
	for (uint32_t i = m->depth; i-- > 0;) {
		m->tags[i].next = m->free;
		m->free = &m->tags[i];
	}
	m->last = &m->first;
	return 0;
}

/* -EAGAIN: there is none; -ENOSPC: all tags are taken. */
static int fetch(struct modqueue *m)
{
	struct modqueue_tag *tag = m->free;
	struct moe_kmod_tag arg = {.queue = m->id, .to = (uintptr_t)&tag->fetched};
	int r;

	if (!tag)
		return -ENOSPC;
	arg.tag = number_of(m, tag);
	r = command(m, MOE_KMOD_FETCH, &arg);
	if (r < 0)
		return r;
	m->free = tag->next;
	tag->next = NULL;
	*m->last = tag;
	m->last = &tag->next;
	m->fetched++;
	m->reissued += tag->fetched.flags & MOE_KMOD_FETCHED_REISSUED;
	return 0;
}

int modqueue_commit(struct modqueue *m, uint32_t number, const struct moe_cqe *cqe)
{
	struct modqueue_tag *tag = &m->tags[number];
	struct moe_kmod_tag arg = {.queue = m->id,
				   .tag = number,
				   .seq = tag->fetched.seq,
				   .answer = {.status = cqe->status,
					      .pairs = cqe->pairs,
					      .wait_ns = cqe->wait_ns,
					      .work_ns = cqe->work_ns,
					      .bytes = cqe->bytes,
					      .lease = cqe->lease,
					      .offset = cqe->offset}};
	const int r = command(m, MOE_KMOD_COMMIT, &arg);

	if (r < 0)
		log_warning("kernel module: queue %u takes no answer to request %" PRIu64 ": %s", m->id,
			    (uint64_t)tag->fetched.seq, strerror(-r));
	tag->next = m->free;
	m->free = tag;
	return r;
}

bool modqueue_issues(void *userdata, uint64_t seq)
{
	const struct modqueue *m = userdata;

	for (const struct modqueue_tag *tag = m ? m->first : NULL; tag; tag = tag->next)
		if (tag->fetched.seq == seq)
			return true;
	return false;
}

/* -- sessions ----------------------------------------------------------------------------------------------------- */

void modqueue_join(struct modqueue *m, struct session *s)
{
	struct session **bucket = &m->clients[s->attach.client % MODQUEUE_BUCKETS];

	s->modqueue = m;
	s->module_next = *bucket;
	*bucket = s;
}

void modqueue_part(struct session *s)
{
	struct session **at;

	if (!s->modqueue)
		return;
	at = &s->modqueue->clients[s->attach.client % MODQUEUE_BUCKETS];
	while (*at != s)
		at = &(*at)->module_next;
	*at = s->module_next;
	s->modqueue = NULL;
}

static struct session *find_session(const struct modqueue *m, uint64_t client, pid_t pid, uid_t uid)
{
	struct session *s = m->clients[client % MODQUEUE_BUCKETS];

	while (s && (s->attach.client != client || s->pid != pid || s->uid != uid))
		s = s->module_next;
	return s;
}

bool modqueue_has(const struct modqueue *m, uint64_t client, pid_t pid, uid_t uid)
{
	return find_session(m, client, pid, uid);
}

/* -- a turn ------------------------------------------------------------------------------------------------------- */

/* False: its session has no room, and from then on it has none in this turn. */
static bool enter(struct modqueue *m, struct sched *sched, const struct modqueue_tag *tag, uint64_t *read)
{
	const struct moe_kmod_fetched *f = &tag->fetched;
	struct session *s = find_session(m, f->client, (pid_t)f->pid, f->uid);
	struct moe_sqe sqe;

	if (!s) {
		m->refused++;
		modqueue_commit(m, number_of(m, tag), &(struct moe_cqe){.status = -ENOTCONN});
		return true;
	}
	memcpy(&sqe, f->sqe, sizeof sqe);
	if (s->module_turn != m->turn && ringsrv_enter(s, sched, &sqe, number_of(m, tag), f->seq, read))
		return true;
	s->module_turn = m->turn;
	return false;
}

/* Entering may free the tag, or others': what waits is taken from the list before. */
static bool enter_all(struct modqueue *m, struct sched *sched)
{
	struct modqueue_tag *tag = m->first;
	uint64_t read = 0; /* bounded for all, as by the ring for each */
	bool any = false;

	m->turn++;
	m->first = NULL;
	m->last = &m->first;
	while (tag) {
		struct modqueue_tag *next = tag->next;

		if (enter(m, sched, tag, &read)) {
			any = true;
		} else {
			tag->next = NULL;
			*m->last = tag;
			m->last = &tag->next;
		}
		tag = next;
	}
	return any;
}

static void fetch_some(struct modqueue *m)
{
	int r = 0;

	for (int i = 0; i < FETCHES_TURN && r == 0; i++)
		r = fetch(m);
	if (r == -EAGAIN) {
		m->asked = loop_again(m->loop, &m->source) < 0; /* or once more */
	} else if (r < 0 && r != -ENOSPC) {
		log_warning("kernel module: queue %u is not served any more: %s", m->id, strerror(-r));
		m->asked = false;
		m->source.fd = close_fd(m->source.fd); /* parks it: who waits is told */
		m->id = 0;                             /* nobody is offered it any more */
	}
}

bool modqueue_turn(struct modqueue *m, struct sched *sched)
{
	bool any = false;

	if (m->asked && m->free) {
		fetch_some(m);
		any = true;
	}
	if (m->first)
		any |= enter_all(m, sched);
	return any;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

/* This user's queue; 0: there is none. */
static uint32_t find_queue(const struct modqueue *m)
{
	struct moe_kmod_queue queue = {0};

	do
		queue = (struct moe_kmod_queue){.id = queue.id};
	while (command(m, MOE_KMOD_QUEUE, &queue) == 0 && queue.owner != geteuid());
	return queue.owner == geteuid() && queue.depth ? queue.id : 0;
}

static int recover(struct modqueue *m, uint32_t id)
{
	struct moe_kmod_recover arg = {.id = id};
	int r = command(m, MOE_KMOD_RECOVER, &arg);

	if (r < 0)
		return r;
	m->id = id;
	m->depth = arg.depth;
	r = make_tags(m);
	for (uint32_t i = 0; i < arg.reissued && r == 0; i++)
		r = fetch(m);
	if (r == 0 || r == -EAGAIN)
		log_info("kernel module: went on with queue %u, of whose requests %" PRIu64 " were in work", id,
			 m->reissued);
	return r == -EAGAIN ? 0 : r;
}

static int serve(struct modqueue *m)
{
	struct moe_kmod_queue_new arg = {.depth = MODQUEUE_DEPTH, .recover_ms = RECOVER_MS, .name = "moe-expertd"};
	const uint32_t id = find_queue(m);
	int r;

	if (id) {
		r = recover(m, id);
		if (r != -ESTALE) /* it has ended meanwhile */
			return r;
	}
	r = command(m, MOE_KMOD_QUEUE_NEW, &arg);
	if (r < 0)
		return r;
	m->id = arg.id;
	m->depth = MODQUEUE_DEPTH;
	return make_tags(m);
}

void modqueue_leave(struct modqueue *m)
{
	m->asked = false;
	m->first = NULL;
	m->last = &m->first;
}

static void let_go(struct modqueue *m)
{
	m->source.fd = close_fd(m->source.fd);
	free(m->tags);
	m->tags = m->free = m->first = NULL;
	m->id = 0;
}

void modqueue_open(struct modqueue *m, const struct modpools *modpools)
{
	int r;

	*m = (struct modqueue){.ops = modpools->ops, .source.fd = -1};
	if (modpools->state != MODPOOLS_USED || !(modpools->features & MOE_KMOD_HAS_QUEUE))
		return;
	m->source.fd = m->ops->open(MOE_KMOD_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	r = m->source.fd < 0 ? -errno : serve(m);
	if (r == 0)
		return;
	log_warning("kernel module: no queue of requests is served: %s; clients ask by their rings", strerror(-r));
	let_go(m);
}

static void ready(struct source *source, uint32_t events)
{
	container_of(source, struct modqueue, source)->asked = true;
}

int modqueue_watch(struct modqueue *m, struct loop *loop, struct moe_error *err)
{
	int r;

	if (!m->id)
		return 0;
	m->source.ready = ready;
	m->source.also = POLLPRI;
	m->source.once = true;
	r = loop_add(loop, &m->source, err);
	if (r == 0)
		m->loop = loop;
	return r;
}

void modqueue_close(struct modqueue *m, bool ends)
{
	if (m->id && ends)
		command(m, MOE_KMOD_QUEUE_END, &(struct moe_kmod_queue_end){.id = m->id});
	if (m->loop)
		loop_remove(m->loop, &m->source);
	m->loop = NULL;
	if (m->tags)
		let_go(m);
}
