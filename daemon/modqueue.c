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
#define ISSUES_MAX 10000
#define ISSUE_AGAIN_US 100

static int command(const struct modqueue *m, unsigned long number, void *arg)
{
	return m->ops->command(m->fd, number, arg) < 0 ? -errno : 0;
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
	m->last_come = &m->come;
	return 0;
}

static void free_tag(struct modqueue *m, struct modqueue_tag *tag)
{
	tag->state = MODQUEUE_FREE;
	tag->next = m->free;
	m->free = tag;
}

static void hold_tag(struct modqueue *m, struct modqueue_tag *tag, struct modqueue_tag ***last)
{
	tag->state = MODQUEUE_HELD;
	tag->next = NULL;
	**last = tag;
	*last = &tag->next;
	m->fetched++;
	m->reissued += tag->fetched.flags & MOE_KMOD_FETCHED_REISSUED;
}

/* Nobody is offered it any more; who waits is told, for it is parked. */
static void give_up(struct modqueue *m, int why)
{
	log_warning("kernel module: queue %u is not served any more: %s", m->id, strerror(-why));
	m->asked = m->rings = false;
	m->fd = close_fd(m->fd);
	m->id = 0;
}

/* -- by ioctl ----------------------------------------------------------------------------------------------------- */

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
	hold_tag(m, tag, &m->last);
	return 0;
}

static void fetch_some(struct modqueue *m)
{
	int r = 0;

	for (int i = 0; i < FETCHES_TURN && r == 0; i++)
		r = fetch(m);
	if (r == -EAGAIN)
		m->asked = loop_again(m->loop, &m->source) < 0; /* or once more */
	else if (r < 0 && r != -ENOSPC)
		give_up(m, r);
}

/* -- by io_uring -------------------------------------------------------------------------------------------------- */

/* The kernel may want memory just now; a second of that is too long. */
static int issue(struct modqueue *m, uint32_t command, const struct moe_kmod_tag *arg)
{
	int r = -EAGAIN;

	for (uint32_t i = 0; i < ISSUES_MAX && (r == -EAGAIN || r == -EBUSY || r == -ENOMEM); i++) {
		if (i > 0)
			usleep(ISSUE_AGAIN_US);
		r = cmdring_issue(&m->ring, m->fd, command, arg, NULL, arg->tag);
	}
	return r;
}

/* What FETCH brings waits in order; it may come at any time that this thread is in the kernel. All of it is read before
 * the queue is given up: what has become of a COMMIT may stand behind what ends it. ENOMEM is the kernel's word: the
 * module has not seen the command. */
static void take_come(struct modqueue *m)
{
	uint64_t number;
	int r, why = 0;

	while (m->rings && cmdring_next(&m->ring, &number, &r)) {
		struct modqueue_tag *tag = &m->tags[number];

		if (r == 0) {
			hold_tag(m, tag, &m->last_come);
		} else if (tag->state == MODQUEUE_COMMITS && r != -ECANCELED && r != -EFAULT) {
			tag->refused = r;
			if (r != -ENOMEM)
				free_tag(m, tag);
		} else if (r == -ENOMEM) {
			free_tag(m, tag);
		} else if (!why) {
			why = r;
		}
	}
	if (why && !m->left)
		give_up(m, why);
}

static void fetch_all(struct modqueue *m)
{
	int r = 0;

	while (m->rings && m->free) {
		struct modqueue_tag *tag = m->free;
		const struct moe_kmod_tag arg = {
			.queue = m->id, .tag = number_of(m, tag), .to = (uintptr_t)&tag->fetched};

		m->free = tag->next;
		tag->state = MODQUEUE_FETCHES;
		r = issue(m, MOE_KMOD_FETCH, &arg);
		if (r < 0)
			give_up(m, r);
	}
}

/* The command is begun when it is issued: a COMMIT that is refused has completed then. The tag may have its next
 * request by then, too. */
static int commit_and_fetch(struct modqueue *m, struct modqueue_tag *tag, struct moe_kmod_tag *arg)
{
	int r;

	arg->to = (uintptr_t)&tag->fetched;
	tag->state = MODQUEUE_COMMITS;
	for (uint32_t i = 0; i == 0 || (m->rings && i < ISSUES_MAX && tag->refused == -ENOMEM); i++) {
		if (i > 0)
			usleep(ISSUE_AGAIN_US);
		tag->refused = 0;
		r = issue(m, MOE_KMOD_COMMIT_AND_FETCH, arg);
		if (r < 0) {
			give_up(m, r);
			return r;
		}
		take_come(m);
	}
	if (tag->refused == -ENOMEM && m->rings)
		give_up(m, -ENOMEM);
	if (tag->state == MODQUEUE_COMMITS)
		tag->state = MODQUEUE_FETCHES;
	r = tag->refused;
	fetch_all(m); /* the one that was refused */
	return r;
}

/* -- answers ------------------------------------------------------------------------------------------------------ */

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
	const bool fetches = m->rings && !m->left;
	const int r = fetches ? commit_and_fetch(m, tag, &arg) : command(m, MOE_KMOD_COMMIT, &arg);

	if (r < 0)
		log_warning("kernel module: queue %u takes no answer to request %" PRIu64 ": %s", m->id,
			    (uint64_t)arg.seq, strerror(-r));
	if (!fetches)
		free_tag(m, tag);
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
	return any || read > 0;
}

/* Behind what waits already. */
static bool take_all(struct modqueue *m)
{
	take_come(m);
	fetch_all(m); /* what the kernel had no memory for */
	if (!m->come)
		return false;
	*m->last = m->come;
	m->last = m->last_come;
	m->come = NULL;
	m->last_come = &m->come;
	return true;
}

bool modqueue_turn(struct modqueue *m, struct sched *sched)
{
	bool any = m->rings && !m->left && take_all(m);

	if (!m->rings && m->asked && m->free) {
		fetch_some(m);
		any = true;
	}
	if (m->first)
		any |= enter_all(m, sched);
	return any;
}

bool modqueue_park(struct modqueue *m)
{
	return m->rings && !m->left && (loop_again(m->loop, &m->source) < 0 || take_all(m));
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
	m->left = true;
	m->asked = false;
	m->first = m->come = NULL;
	m->last = &m->first;
	m->last_come = &m->come;
}

static void let_go(struct modqueue *m)
{
	m->rings = false;
	m->fd = close_fd(m->fd); /* from here on nothing is written to tags */
	cmdring_close(&m->ring);
	free(m->tags);
	m->tags = m->free = m->first = m->come = NULL;
	m->id = 0;
}

/* Where the module says that it can, the kernel is asked by trying it; what forbids commands alone, too. */
static void choose_way(struct modqueue *m, uint64_t features)
{
	int r = -EOPNOTSUPP;

	if (features & MOE_KMOD_HAS_URING)
		r = cmdring_open(&m->ring, m->fd, 2 * m->depth, true);
	m->rings = r == 0;
	log_info("kernel module: serves queue %u by %s%s%s", m->id, modqueue_way(m),
		 r < 0 ? ": no io_uring for it: " : "", r < 0 ? strerror(-r) : "");
}

void modqueue_open(struct modqueue *m, const struct modpools *modpools)
{
	int r;

	*m = (struct modqueue){.ops = modpools->ops, .fd = -1, .ring.fd = -1, .source.fd = -1};
	if (modpools->state != MODPOOLS_USED || !(modpools->features & MOE_KMOD_HAS_QUEUE))
		return;
	m->fd = m->ops->open(MOE_KMOD_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	r = m->fd < 0 ? -errno : serve(m);
	if (r == 0) {
		choose_way(m, modpools->features);
		return;
	}
	log_warning("kernel module: no queue of requests is served: %s; clients ask by their rings", strerror(-r));
	let_go(m);
}

static void ready(struct source *source, uint32_t events)
{
	struct modqueue *m = container_of(source, struct modqueue, source);

	m->asked = m->id != 0; /* not given up */
}

int modqueue_watch(struct modqueue *m, struct loop *loop, struct moe_error *err)
{
	int r;

	if (!m->id)
		return 0;
	m->source.fd = m->rings ? m->ring.fd : m->fd;
	m->source.ready = ready;
	m->source.also = POLLPRI;
	m->source.once = true;
	r = loop_add(loop, &m->source, err);
	if (r < 0)
		return r;
	m->loop = loop;
	fetch_all(m);
	return 0;
}

const char *modqueue_way(const struct modqueue *m)
{
	return !m->id ? "none" : m->rings ? "io_uring" : "ioctl";
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
