/* SPDX-License-Identifier: MIT */
#include "daemon/service.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/uring.h"
#include "base/util.h"
#include "daemon/allowance.h"
#include "daemon/closer.h"
#include "daemon/estate.h"
#include "daemon/events.h"
#include "daemon/exporter.h"
#include "daemon/handover.h"
#include "daemon/peer-messages.h"
#include "daemon/ringsrv.h"

#define COMPLETIONS_TURN 32 /* of requests, before the rings have their turn again */
#define HEAT_LOOK_NS 200000000u
#define TURNS_PER_LOOK 1024 /* at the clock, while the reactor does not sleep */

/* -- the reactor's turn ------------------------------------------------------------------------------------------- */

static bool serve_rings(struct service *s)
{
	struct session *broken;
	bool any;

	if (guard_hits() != s->guard_hits)
		service_cut_off_lost(s);
	any = pollset_turn(&s->rings, s->sched);
	while ((broken = pollset_next_broken(&s->rings)))
		service_cut_off(s, broken, broken->broken);
	if (s->bury)
		service_bury(s);
	return any || s->bury;
}

/* What the pool has finished, a bounded number: the rings have their turn between. */
static bool serve_done(struct service *s)
{
	struct request *request;
	bool any = false;

	for (int i = 0; i < COMPLETIONS_TURN && (request = sched_next_done(s->sched)); i++) {
		request->session->pool_ns += request->cqe.work_ns;
		request->session->charge.account->pool_ns += request->cqe.work_ns;
		s->bury |= request->session->dead;
		ringsrv_complete(request);
		any = true;
	}
	return any;
}

/* Slots in a GPU's memory that are there now, or that could not be imported. */
static bool serve_opened(struct service *s)
{
	struct push_slots *slots;
	struct moe_error err;
	bool any = false;
	void *owner;
	int r;

	while ((slots = push_next_opened(s->push, &owner, &r, &err))) {
		struct session *session = owner;

		if (!session->dead)
			peer_device_opened(service_peer_of(s, session), r, &err);
		any = true;
	}
	return any;
}

void service_take_heat(struct service *s)
{
	for (struct session *session = s->sessions; session; session = session->next)
		if (!session->dead)
			ringsrv_take_heat(session);
}

void service_begin_heat(struct service *s)
{
	if (!s->heat_round.next)
		heat_round_begin(&s->heat_round, s->sessions);
	heat_round_piece(&s->heat_round);
}

/* Who has it all in its own slots asks for nothing: what it tells waits until somebody does, or asks for it. */
static void look_at_heat(struct service *s)
{
	const uint64_t now = now_ns();

	if (now - s->heats.looked_ns < HEAT_LOOK_NS)
		return;
	s->heats.looked_ns = now;
	closer_retry();
	peers_look(s, false);
	service_begin_heat(s);
	heats_look(&s->heats, now);
}

static bool service_turn(void *userdata)
{
	struct service *s = userdata;
	bool busy, any = serve_rings(s);

	any |= agreements_turn(&s->agreements);
	any |= serve_done(s);
	any |= modqueue_turn(&s->modqueue, s->sched);
	busy = any;
	any |= heat_round_turn(&s->heat_round, busy);
	any |= drafts_turn(s, busy);
	any |= bus_turn(s->bus);
	any |= holes_collect(s->holes);
	if (s->push)
		any |= serve_opened(s);
	if (s->trace)
		any |= service_trace_turn(s);
	for (struct entry *e = s->registry.head; e; e = e->next)
		any |= e->tier && tier_poll(e->tier);
	if (++s->turns % TURNS_PER_LOOK == 0)
		look_at_heat(s);
	if (s->load && atomic_load(&s->load->finished)) {
		service_finish_load(s);
		any = true;
	} else if (s->load) {
		service_report_load(s);
	}
	return any;
}

/* Heap and pool keep the peak of many sessions until they are told to give back what they do not use: when the keeper
 * has heard of the last one's end, for letters to it lie between what is free. */
static void trim_memory(struct service *s)
{
	if (!s->trim || handover_waiting(s->handover) > 0 || !holes_none(s->holes))
		return;
	pool_trim(s->pool);
	closer_trim();
	s->trim = false;
}

static bool service_park(void *userdata)
{
	struct service *s = userdata;

	trim_memory(s);
	agreements_park(&s->agreements);
	look_at_heat(s);
	if (s->heat_round.next || modqueue_park(&s->modqueue))
		return true;
	return pollset_park(&s->rings, s->sched);
}

static void service_unpark(void *userdata)
{
	struct service *s = userdata;

	pollset_unpark(&s->rings);
}

static void enters(struct door *door, int sock)
{
	if (peer_new(container_of(door, struct service, door), sock) == -ENOMEM)
		event_log(EVENT_NO_MEMORY, FACTS(.count = 0), "refused a connection: no memory");
}

/* -- sources ------------------------------------------------------------------------------------------------------ */

static void signal_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, signal_source);
	struct signalfd_siginfo info;

	while (read(source->fd, &info, sizeof info) == sizeof info) {
		/* By the kernel it comes when our terminal is gone: then this daemon ends, too. */
		if (info.ssi_signo == SIGHUP && info.ssi_code != SI_KERNEL) {
			service_reload(s);
			continue;
		}
		service_tell_end(s);
		s->leaves = info.ssi_signo == SIGUSR2 && handover_keeps(s->handover);
		event_log(EVENT_ENDING, FACTS(.reason = strsignal((int)info.ssi_signo)), "%s: ending%s",
			  strsignal((int)info.ssi_signo),
			  s->leaves ? "; models and sessions stay with the keeper" : "");
		loop_stop(s->loop, 0);
	}
}

/* Standard input belongs to the parent as well: this read does not wait, whatever its flags are. */
static void parent_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, parent_source);
	char dropped[64];
	const struct iovec iov = {dropped, sizeof dropped};

	ssize_t n = preadv2(source->fd, &iov, 1, -1, RWF_NOWAIT);

	if (n < 0 && errno == EOPNOTSUPP) /* pipes before Linux 6.4: it is readable, or there would be no event */
		n = read(source->fd, dropped, sizeof dropped);
	if (n == 0 || events & (POLLHUP | POLLERR))
		loop_stop(s->loop, 0);
}

static void sums_ready(struct source *source, uint32_t events)
{
	uint64_t times;

	if (read(source->fd, &times, sizeof times) == sizeof times)
		events_tell_sums();
}

static int open_sums(struct service *s, struct moe_error *err)
{
	s->sums = (struct source){.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
				  .ready = sums_ready};
	if (s->sums.fd < 0)
		return moe_error_sys(err, -errno, "events: timerfd");
	events_use_timer(s->sums.fd);
	return loop_add(s->loop, &s->sums, err);
}

static int open_signals(struct service *s, struct moe_error *err)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGHUP);
	/* Before any thread is made, so that all inherit the mask. */
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a log or a trace that may not grow is an error of that write */
	s->signal_source = (struct source){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = signal_ready};
	if (s->signal_source.fd < 0)
		return moe_error_sys(err, -errno, "signalfd");
	return 0;
}

static int watch(struct service *s, struct moe_error *err)
{
	int r;

	r = door_open(&s->door, s->listener.socket, handover_succeeds(s->handover), s->loop, err);
	if (r == 0)
		r = loop_add(s->loop, &s->signal_source, err);
	if (r == 0)
		r = service_manager_open(s, err);
	if (r == 0)
		r = service_keeper_open(s, err);
	if (r == 0)
		r = open_sums(s, err);
	if (r == 0 && s->config->private_mode) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		s->parent_source = (struct source){.fd = STDIN_FILENO, .ready = parent_ready};
		r = loop_add(s->loop, &s->parent_source, err);
	}
	return r;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static int start_workers(struct service *s, struct moe_error *err)
{
	const struct pool_params params = {
		.host = s->host,
		.threads = s->config->threads,
		.kernels = kernels_get(s->config->isa),
		.spin_us = s->config->spin_us,
	};
	const struct loop_hooks hooks = {
		.poll = service_turn,
		.park = service_park,
		.unpark = service_unpark,
		.userdata = s,
		.spin_us = s->config->spin_us,
	};
	int r = loop_new(&s->loop, &hooks, err);

	s->uring = r == 0 ? uring_probe() : r;
	if (r == 0)
		r = holes_new(&s->holes, s->loop, err);
	if (r == 0)
		r = agreements_open(&s->agreements, s->loop, err);
	if (r == 0)
		r = pool_new(&s->pool, &params, err);
	if (r == 0)
		r = sched_new(&s->sched, s->pool, s->config->fill_budget, err);
	if (r == 0)
		sched_set_loop(s->sched, s->loop);
	if (r == 0 && s->push)
		push_set_loop(s->push, s->loop);
	return r;
}

/* What a daemon before this one has left with the keeper. */
static int revive(struct service *s, struct moe_error *err)
{
	struct session *session;
	uint32_t sessions = 0;
	int sock, r = estate_take_models(s->handover, &s->registry, s->loop, s->host, err);

	if (r == 0)
		r = modpools_take(&s->modpools, &s->registry, s->loop, s->host, &s->estate->next_epoch, err);
	for (struct entry *e = s->registry.head; e; e = e->next)
		heats_join(&s->heats, s->handover, e, NULL);
	while (r >= 0 &&
	       (r = estate_take_session(s->handover, &s->registry, s->accounts, s->loop, &session, &sock, err)) > 0) {
		r = peer_revive(s, sock, session, err);
		sessions++;
	}
	if (r < 0)
		return r;
	for (struct entry *e = s->registry.head; e; e = e->next) {
		service_start_mover(s, e);
		if (e->tier)
			frames_pause(tier_frames(e->tier), false); /* all leases have their records */
	}
	r = modpools_watch(&s->modpools, s->loop, err);
	if (r == 0)
		r = modqueue_watch(&s->modqueue, s->loop, err);
	if (r < 0)
		return r;
	if (s->registry.n || sessions)
		event_log(EVENT_TAKEN_OVER, FACTS(.count = sessions),
			  "went on with %u models and %u sessions of the daemon before", s->registry.n, sessions);
	return 0;
}

static void keep_listener(struct service *s)
{
	if (!s->listener.activated)
		handover_put(s->handover, s->listener.socket, "listen");
}

/* One in place of what the daemon before has left lets go of its name first: nobody reaches that one any more. */
static int open_listener(struct service *s, struct moe_error *err)
{
	const int left = handover_take(s->handover, "listen");
	int r = listener_open(&s->listener, s->config->socket, s->config->socket_mode, left,
			      handover_take_activated(s->handover), err);

	if (r == 0 && left >= 0 && s->listener.socket != left)
		handover_drop(s->handover, "listen");
	if (r == 0)
		keep_listener(s);
	return r;
}

/* Names that something else had until what was refused has let go of them. */
static void keep_replaced(struct service *s)
{
	keep_listener(s);
	handover_put(s->handover, s->registrar_fd, "registrar");
	for (struct entry *e = s->registry.head; e; e = e->next) {
		if (!e->kept) /* the kernel module had it */
			service_keep_model(s, e);
		estate_keep_measured(s->handover, e);
	}
}

static int open_accounts(struct service *s, struct moe_error *err)
{
	uint64_t limits[ACCOUNT_RESOURCES];

	allowance_limits(limits, s->config, s->host);
	return accounts_new(&s->accounts, limits, err);
}

/* A daemon that takes over serves its sessions, whether or not it can tell about them. */
static int open_exporter(struct service *s, struct moe_error *err)
{
	const struct config *c = s->config;
	int r;

	if (!c->metrics)
		return 0;
	r = exporter_new(&s->exporter, &c->metrics_address, c->socket_mode, s->loop, err);
	if (r == 0 || !handover_succeeds(s->handover))
		return r;
	event_log(EVENT_NO_METRICS, FACTS(.reason = err->text), "goes on without metrics: %s", err->text);
	return 0;
}

int service_new(struct service **ret, struct config *config, struct handover *handover, struct moe_error *err)
{
	struct service *s = calloc(1, sizeof *s);
	int r;

	if (!s)
		return moe_error_sys(err, -ENOMEM, "service");
	s->config = config;
	s->handover = handover;
	s->started_ns = now_ns();
	s->listener.socket = s->signal_source.fd = s->manager.tick.fd = s->keeper.patience.fd = s->sums.fd =
		s->registrar_fd = -1;
	s->modpools.source.fd = s->modqueue.source.fd = -1;
	s->keeper.last = &s->keeper.first;
	s->agreements.timer.fd = -1;
	s->heats.every = config->heat_steps;
	s->leaves = handover_succeeds(handover);
	handover_hold(handover);
	door_init(&s->door, enters);
	taps_init(&s->taps, s);
	allowance_raise();
	if (getrandom(&s->instance, sizeof s->instance, GRND_NONBLOCK) != sizeof s->instance)
		s->instance = s->started_ns;
	s->host = calloc(1, sizeof *s->host);
	s->heats.folder = config->state_directory ? strdup(config->state_directory) : NULL;
	r = s->host && (s->heats.folder || !config->state_directory) ? 0 : moe_error_sys(err, -ENOMEM, "service");
	/* Of a successor those that the daemon before has left count as found. */
	if (r == 0 && !s->leaves)
		r = service_check_models(s, err);
	if (r == 0)
		r = open_signals(s, err);
	if (r == 0) {
		/* Before there is anything to clean up: libnuma ends a process that has no memory. */
		host_read(s->host, false);
		s->estate = estate_open(s->handover, err);
		r = s->estate ? open_listener(s, err) : -ENOMEM;
	}
	if (r == 0) {
		s->registrar_fd = estate_registrar(s->handover, err);
		r = MIN(s->registrar_fd, 0);
	}
	if (r == 0 && config->push_cuda)
		r = push_new(&s->push, config->push_patience_s, s->registrar_fd, err);
	if (r == 0)
		r = open_accounts(s, err);
	if (r == 0)
		r = guard_start(err);
	if (r == 0)
		r = start_workers(s, err);
	if (r == 0)
		r = modpools_open(&s->modpools, config->module, NULL, err);
	if (r == 0) {
		modqueue_open(&s->modqueue, &s->modpools);
		r = revive(s, err);
	}
	if (r == 0 && s->leaves)
		r = service_check_models(s, err);
	if (r == 0)
		r = watch(s, err);
	if (r == 0)
		r = open_exporter(s, err);
	if (r == 0 && config->bus)
		r = bus_new(&s->bus, s, err);
	if (r == 0) {
		/* Now only a load can fail: what cannot go on is given up, and its clients see that. */
		handover_discard_rest(s->handover);
		handover_settle(s->handover);
		keep_replaced(s);
		modpools_settle(&s->modpools);
		r = service_load_next(s, err);
	}
	if (r < 0) {
		service_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

int service_run(struct service *s, bool *ret_leaves)
{
	const int r = loop_run(s->loop);

	*ret_leaves = s->leaves && r == 0;
	s->ended = r == 0 && !s->leaves;
	s->leaves |= r < 0 && s->ready && handover_keeps(s->handover);
	return r;
}

/* Everything that the pool still holds comes back first; then nothing else moves any more. What stays with the keeper
 * is let go of as if this process were killed here. */
static void end_sessions(struct service *s)
{
	if (s->leaves)
		modqueue_leave(&s->modqueue);
	for (struct entry *e = s->registry.head; s->leaves && e; e = e->next)
		if (e->tier)
			frames_pause(tier_frames(e->tier), true); /* what is lent stays where it is */
	holes_end(s->holes);
	while (s->peers && s->leaves)
		peer_leave(s->peers);
	while (s->peers)
		peer_close(s->peers, NULL);
	for (struct session *session = s->sessions; session; session = session->next)
		if (!session->dead) /* no peer could be made of its connection */
			service_leave_session(s, session);
	while (s->sessions) {
		service_turn(s);
		if (s->sessions)
			usleep(100);
	}
}

struct service *service_free(struct service *s)
{
	if (!s)
		return NULL;
	s->load = load_free(s->load);
	modpools_accept(&s->modpools, &s->gift, "", false); /* its load is not finished by anybody any more */
	heats_saved_free(&s->saved);
	heats_release(&s->heats);
	service_end_trace(s);
	drafts_end(&s->drafts);
	s->exporter = exporter_free(s->exporter, s->leaves);
	s->bus = bus_free(s->bus);
	jobs_clear(&s->jobs);
	s->drain_job = NULL;
	door_close(&s->door); /* who comes while we end would be left */
	if (s->sched)
		end_sessions(s);
	modqueue_close(&s->modqueue, s->ended);
	modpools_close(&s->modpools, s->ended);
	loop_drain(s->loop);
	push_free(s->push);
	registry_stop_movers(&s->registry);
	pool_free(s->pool);
	sched_free(s->sched);
	for (struct entry *e = s->registry.head; e; e = e->next)
		heats_part(&s->heats, s->leaves ? NULL : s->handover, e);
	heats_end(&s->heats);
	registry_clear(&s->registry);
	handover_on_waiting(s->handover, NULL, NULL);
	loop_free(s->loop); /* where io_uring takes nothing any more, the last sources go only now */
	peers_look(s, true);
	s->holes = holes_free(s->holes);
	closer_settle(); /* what they gave to the closer is let go of as well */
	accounts_free(s->accounts);
	guard_stop();
	if (!s->leaves) {
		handover_settle(s->handover);
		handover_drop(s->handover, "service");
		handover_drop(s->handover, "listen");
		handover_drop(s->handover, "registrar");
	}
	if (s->estate)
		munmap(s->estate, MOE_RING_PAGE);
	listener_close(&s->listener, s->leaves, s->config->private_mode && strchr(s->config->socket, '/'));
	taps_free(&s->taps);
	close_fd(s->signal_source.fd);
	close_fd(s->manager.tick.fd);
	close_fd(s->keeper.patience.fd);
	events_use_timer(-1);
	events_tell_sums();
	close_fd(s->sums.fd);
	close_fd(s->registrar_fd);
	agreements_close(&s->agreements);
	door_free(&s->door);
	free(s->heats.folder);
	free(s->host);
	free(s);
	return NULL;
}
