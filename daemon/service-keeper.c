/* SPDX-License-Identifier: MIT */
/*
 * service-keeper - the descriptors that go to the keeper, and the answers that wait until it has them.
 *
 * Law: nobody is told that something outlives this daemon before it has been sent (docs/decisions/0108), and nobody
 * waits for a keeper that has taken nothing for HANDOVER_PATIENCE_NS. Answers are given in the order in which they were
 * due: what an earlier one waits for went no later than what a later one does.
 */
#include <errno.h>
#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/handover.h"
#include "daemon/peer-messages.h"
#include "daemon/peer.h"
#include "daemon/service.h"

#define LOOK_NS (HANDOVER_PATIENCE_NS / 4) /* from one look at a keeper that takes nothing to the next */

/* -- who waits ---------------------------------------------------------------------------------------------------- */

static void look_again(const struct service *s)
{
	const struct itimerspec timer = {.it_value = {.tv_nsec = LOOK_NS}};

	timerfd_settime(s->keeper.patience.fd, 0, &timer, NULL);
}

void service_forget_waiting(struct service *s, struct peer *peer)
{
	struct peer **at = &s->keeper.first;

	while (*at && *at != peer)
		at = &(*at)->next_waiting;
	if (!*at)
		return;
	*at = peer->next_waiting;
	if (!*at)
		s->keeper.last = at;
}

static void answer_sent(struct service *s)
{
	struct peer *peer;

	while ((peer = s->keeper.first) && handover_sent(s->handover, peer->kept_ns)) {
		service_forget_waiting(s, peer);
		peer_kept(peer);
	}
}

void service_await_keeper(struct service *s, struct peer *peer)
{
	const bool alone = !s->keeper.first;

	peer->next_waiting = NULL;
	*s->keeper.last = peer;
	s->keeper.last = &peer->next_waiting;
	answer_sent(s);
	if (alone && s->keeper.first)
		look_again(s);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

static void await_room(void *userdata)
{
	struct service *s = userdata;

	if (loop_again(s->loop, &s->keeper.post) < 0)
		log_warning("reactor: no poll for the keeper's socket; asked for again with the next message");
}

static void post_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, keeper.post);

	if (handover_post(s->handover) > 0)
		await_room(s);
	answer_sent(s);
}

static void patience_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, keeper.patience);
	uint64_t times;

	if (read(source->fd, &times, sizeof times) != sizeof times)
		return;
	answer_sent(s);
	if (s->keeper.first)
		look_again(s);
}

/* Heard once now: something may wait already. */
static int watch_post(struct service *s, struct moe_error *err)
{
	struct source *post = &s->keeper.post;

	*post = (struct source){.fd = handover_socket(s->handover), .ready = post_ready, .also = POLLOUT, .once = true};
	if (post->fd < 0)
		return 0;
	handover_on_waiting(s->handover, await_room, s);
	return loop_add(s->loop, post, err);
}

int service_keeper_open(struct service *s, struct moe_error *err)
{
	struct source *patience = &s->keeper.patience;
	const int r = watch_post(s, err);

	if (r < 0)
		return r;
	*patience = (struct source){.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
				    .ready = patience_ready};
	if (patience->fd < 0)
		return moe_error_sys(err, -errno, "a timer for answers that wait for the keeper");
	return loop_add(s->loop, patience, err);
}
