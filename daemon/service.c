/* SPDX-License-Identifier: MIT */
#include "daemon/service.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/uring.h"
#include "base/util.h"
#include "daemon/estate.h"
#include "daemon/handover.h"
#include "daemon/peer.h"
#include "daemon/ringsrv.h"

#define FDS_OWN 256            /* descriptors that the daemon keeps for itself: models, loads, rings */
#define PROGRESS_NS 250000000u /* to a peer that shows a bar */
#define LOGGED_NS 5000000000u  /* to the log */
#define COMPLETIONS_TURN 32    /* of requests, before the rings have their turn again */

/* -- load --------------------------------------------------------------------------------------------------------- */

/* What of --memory-max the loaded models have left; 0: no limit. */
static int memory_left(const struct service *s, const char *path, uint64_t *ret, struct moe_error *err)
{
	const uint64_t used = registry_bytes(&s->registry), max = s->config->memory_max;

	if (max && used >= max)
		return moe_error_set(err, -ENOMEM,
				     "%s: models already take %llu of --memory-max %llu bytes; unload one", path,
				     (unsigned long long)used, (unsigned long long)max);
	*ret = max ? max - used : 0;
	return 0;
}

int service_load(struct service *s, struct peer *peer, const char *path, const char *name, struct moe_error *err)
{
	struct store_params params = {
		.path = path,
		.name = name && *name ? name : strrchr(path, '/') + 1, /* the path is absolute */
		.pages = s->config->pages,
		.writable_clients = s->config->writable_weights,
		.pool_max = s->config->pool_max,
		.epoch = s->estate->next_epoch,
		.host = s->host,
	};
	int r;

	if (s->load)
		return moe_error_set(err, -EBUSY, "%s: %s is being loaded; one at a time", path, s->load->path);
	r = registry_check_name(&s->registry, params.name, err);
	if (r == 0)
		r = memory_left(s, path, &params.memory_max, err);
	if (r < 0)
		return r;
	host_read_again(s->host); /* pages may have been reserved since the start */
	r = load_start(&s->load, &params, s->loop, err);
	if (r < 0)
		return r;
	s->estate->next_epoch++;
	s->load_peer = peer;
	s->load_reported_ns = now_ns();
	log_info("loading %s", path);
	return 0;
}

static void report_progress(struct service *s)
{
	const struct load *load = s->load;
	const uint64_t done = atomic_load(&load->done_bytes), total = atomic_load(&load->total_bytes);
	const uint64_t elapsed = atomic_load(&load->elapsed_ns), eta = load_eta_ns(load);

	if (now_ns() - s->load_reported_ns < (s->load_peer ? PROGRESS_NS : LOGGED_NS) || total == 0)
		return;
	s->load_reported_ns = now_ns();
	if (s->load_peer)
		peer_send_progress(s->load_peer, done, total, elapsed, eta);
	else if (done == 0)
		log_info("%s: preparing memory for %.2f GB", load->path, (double)total / 1e9);
	else
		log_info("%s: %.0f %% of %.2f GB, %.2f GB/s, %.0f s to go", load->path,
			 100.0 * (double)done / (double)total, (double)total / 1e9,
			 elapsed ? (double)done / (double)elapsed : 0.0, (double)eta / 1e9);
}

static void say_ready(struct service *s)
{
	static const char word[] = "READY\n";

	s->ready = true;
	if (handover_notify(s->handover, "READY=1") < 0)
		log_warning("the service manager cannot be told READY=1");
	log_info("ready: %u models, %u CPU threads (%s), socket %s", s->registry.n, pool_threads(s->pool),
		 isa_name(s->config->isa), s->config->socket);
	if (s->config->ready_fd >= 0) {
		if (write(s->config->ready_fd, word, sizeof word - 1) < 0)
			log_warning("--ready-fd %d: %s", s->config->ready_fd, strerror(errno));
		close_fd(s->config->ready_fd);
	}
}

static const char *name_of(const char *path, const char *name)
{
	return name && *name ? name : strrchr(path, '/') + 1; /* the path is absolute */
}

/* The command line's models, one after the other; READY after the last. */
static int load_next(struct service *s, struct moe_error *err)
{
	const uint32_t i = s->models_next;
	_cleanup_free_ char *path = NULL;

	if (i == s->config->n_models) {
		if (!s->ready)
			say_ready(s);
		return 0;
	}
	s->models_next++;
	path = realpath(s->config->models[i], NULL);
	if (!path)
		return moe_error_sys(err, -errno, "--model %s", s->config->models[i]);
	if (registry_by_path(&s->registry, path, name_of(path, s->config->names[i])))
		return load_next(s, err); /* the daemon before has loaded it */
	return service_load(s, NULL, path, s->config->names[i], err);
}

static int start_tier(struct service *s, struct entry *entry, struct moe_error *err)
{
	int r = registry_start_tier(entry, s->loop, err);

	if (r < 0)
		registry_remove(&s->registry, entry->model->manifest->name, NULL);
	else if (entry->tier)
		frames_pause(tier_frames(entry->tier), false);
	return r;
}

static void finish_load(struct service *s)
{
	struct load *load = s->load;
	struct peer *peer = s->load_peer;
	struct moe_error err = load->error;
	struct entry *entry = NULL;
	int r = load->code;

	s->load = NULL;
	s->load_peer = NULL;
	if (r == 0) {
		s->weight_bytes_read += load->result->read_bytes;
		r = registry_add(&s->registry, load->result, &entry, &err);
		if (r == 0)
			load->result = NULL;
	}
	if (r == 0)
		r = start_tier(s, entry, &err);
	if (r == 0 && handover_keeps(s->handover) && estate_keep_model(s->handover, entry) < 0)
		log_warning("model %s will not outlive this daemon: the keeper does not take it",
			    entry->model->manifest->name);
	if (r < 0)
		log_err("%s", err.text);
	if (peer && r < 0)
		peer_send_error(peer, r, err.text);
	else if (peer)
		peer_send_loaded(peer, entry->model->manifest, registry_model_bytes(entry->model),
				 entry->model->load_ns);
	load_free(load);
	if (!s->ready && r == 0) {
		r = load_next(s, &err);
		if (r < 0)
			log_err("%s", err.text);
	}
	if (!s->ready && r < 0)
		loop_stop(s->loop, r);
}

/* -- the reactor's turn ------------------------------------------------------------------------------------------- */

static struct peer *peer_of(const struct service *s, const struct session *session)
{
	struct peer *peer = s->peers;

	while (peer && peer->session != session)
		peer = peer->next;
	return peer;
}

static void free_dead(struct service *s)
{
	struct session **at = &s->sessions;

	s->bury = false;
	while (*at) {
		struct session *session = *at;

		if (session->dead && !session_busy(session)) {
			*at = session->next;
			session_free(session);
			s->trim = !s->sessions;
		} else {
			at = &session->next;
		}
	}
}

static void cut_off_lost(struct service *s)
{
	s->guard_hits = guard_hits();
	for (struct session *session = s->sessions; session; session = session->next)
		if (!session->dead && session_lost_page(session))
			peer_close(peer_of(s, session),
				   "a page of its memory is lost: a hole without memory to fill it, or a fault");
}

static bool serve_rings(struct service *s)
{
	struct session *broken;
	bool any;

	if (guard_hits() != s->guard_hits)
		cut_off_lost(s);
	any = pollset_turn(&s->rings, s->sched);
	while ((broken = pollset_next_broken(&s->rings)))
		peer_close(peer_of(s, broken), broken->broken);
	if (s->bury)
		free_dead(s);
	return any;
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

static bool service_turn(void *userdata)
{
	struct service *s = userdata;
	bool any = serve_rings(s);

	any |= serve_done(s);
	for (struct entry *e = s->registry.head; e; e = e->next)
		any |= e->tier && tier_poll(e->tier);
	if (s->load && atomic_load(&s->load->finished)) {
		finish_load(s);
		any = true;
	} else if (s->load) {
		report_progress(s);
	}
	return any;
}

/* Heap and pool keep the peak of many sessions until they are told to give back what they do not use. */
static bool service_park(void *userdata)
{
	struct service *s = userdata;

	if (s->trim) {
		pool_trim(s->pool);
		malloc_trim(0);
	}
	s->trim = false;
	return pollset_park(&s->rings, s->sched);
}

static void service_unpark(void *userdata)
{
	struct service *s = userdata;

	pollset_unpark(&s->rings);
}

int service_unload(struct service *s, const char *name, struct moe_error *err)
{
	struct entry *entry;

	if (*name && registry_find(&s->registry, name, NULL, &entry, err) == 0 && entry->model->sessions == 0) {
		estate_drop_model(s->handover, entry);
		s->weight_bytes_read += entry->tier ? tier_read_bytes(entry->tier) : 0;
	}
	return registry_remove(&s->registry, name, err);
}

void service_add_session(struct service *s, struct session *session)
{
	const bool revived = session->id;

	if (!revived)
		session->id = s->estate->next_session++;
	session->next = s->sessions;
	s->sessions = session;
	pollset_add(&s->rings, session, revived);
}

void service_kill_session(struct service *s, struct session *session)
{
	session_kill(session, s->sched);
	s->bury = true;
}

/* -- sources ------------------------------------------------------------------------------------------------------ */

/* Out of descriptors: the spare one takes the connection in, to close it, so that it does not wake us for ever. */
static void shed_connection(struct service *s)
{
	close_fd(s->spare_fd);
	close_fd(accept4(s->listen_source.fd, NULL, NULL, SOCK_CLOEXEC));
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (!s->shedding)
		log_warning(
			"refused a connection: no file descriptor is left (ulimit -n, or LimitNOFILE= of the unit)");
	s->shedding = true;
}

static void listen_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, listen_source);
	int sock = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (sock < 0) {
		if (errno == EMFILE || errno == ENFILE)
			shed_connection(s);
		else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_warning("accept: %s", strerror(errno));
		return;
	}
	s->shedding = false;
	if (peer_new(s, sock) == -ENOMEM)
		log_warning("refused a connection: no memory");
}

static void signal_ready(struct source *source, uint32_t events)
{
	struct service *s = container_of(source, struct service, signal_source);
	struct signalfd_siginfo info;

	while (read(source->fd, &info, sizeof info) == sizeof info) {
		s->leaves = info.ssi_signo == SIGUSR2 && handover_keeps(s->handover);
		log_info("%s: ending%s", strsignal((int)info.ssi_signo),
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

/* A session takes five descriptors: as many as the administrator allows, not as many as shells start with. */
static void raise_limits(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

/* Half of the memory that this process may have. */
static uint64_t half_memory(const struct host *host)
{
	const uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	return (host->mem_limit > 0 ? MIN((uint64_t)host->mem_limit, memory) : memory) / 2;
}

/* Half of the descriptors that the daemon does not need for itself. */
static uint64_t half_files(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur > ACCOUNT_LIMIT_MAX)
		return ACCOUNT_LIMIT_MAX;
	return (files.rlim_cur - MIN(files.rlim_cur / 4, FDS_OWN)) / 2;
}

static int open_accounts(struct service *s, struct moe_error *err)
{
	const uint64_t files = half_files(), given = s->config->uid_limits[ACCOUNT_FDS];
	uint64_t limits[ACCOUNT_RESOURCES] = {
		[ACCOUNT_BYTES] = half_memory(s->host),
		[ACCOUNT_FDS] = files,
		[ACCOUNT_CONNECTIONS] = ACCOUNT_CONNECTIONS_DEFAULT,
		[ACCOUNT_SESSIONS] = ACCOUNT_SESSIONS_DEFAULT,
		[ACCOUNT_REQUESTS] = ACCOUNT_REQUESTS_DEFAULT,
		[ACCOUNT_LEASES] = ACCOUNT_LEASES_DEFAULT,
	};

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		if (s->config->uid_limits[i])
			limits[i] = s->config->uid_limits[i];
	if (given > files)
		log_warning("--uid-limit fds=%llu: %llu is what ulimit -n (LimitNOFILE= of the unit) allows",
			    (unsigned long long)given, (unsigned long long)files);
	limits[ACCOUNT_FDS] = MIN(limits[ACCOUNT_FDS], files);
	return accounts_new(&s->accounts, limits, err);
}

static int open_signals(struct service *s, struct moe_error *err)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR2);
	/* Before any thread is made, so that all inherit the mask. */
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	s->signal_source = (struct source){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = signal_ready};
	if (s->signal_source.fd < 0)
		return moe_error_sys(err, -errno, "signalfd");
	return 0;
}

static int watch(struct service *s, struct moe_error *err)
{
	int r;

	s->listen_source = (struct source){.fd = s->listener.socket, .ready = listen_ready};
	r = loop_add(s->loop, &s->listen_source, err);
	if (r == 0)
		r = loop_add(s->loop, &s->signal_source, err);
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
		r = pool_new(&s->pool, &params, err);
	if (r == 0)
		r = sched_new(&s->sched, s->pool, s->config->fill_budget, err);
	if (r == 0)
		sched_set_loop(s->sched, s->loop);
	return r;
}

/* What a daemon before this one has left with the keeper. */
static void revive(struct service *s)
{
	struct session *session;
	uint32_t sessions = 0;
	int sock;

	estate_take_models(s->handover, &s->registry, s->loop, s->host);
	while (estate_take_session(s->handover, &s->registry, s->accounts, s->loop, &session, &sock))
		sessions += peer_revive(s, sock, session) == 0;
	for (struct entry *e = s->registry.head; e; e = e->next)
		if (e->tier)
			frames_pause(tier_frames(e->tier), false); /* all leases have their records */
	if (s->registry.n || sessions)
		log_notice("went on with %u models and %u sessions of the daemon before", s->registry.n, sessions);
	handover_discard_rest(s->handover);
}

static int open_listener(struct service *s, struct moe_error *err)
{
	int r = listener_open(&s->listener, s->config->socket, s->config->socket_mode,
			      handover_take(s->handover, "listen"), err);

	if (r == 0)
		handover_put(s->handover, s->listener.socket, "listen");
	return r;
}

int service_new(struct service **ret, const struct config *config, struct handover *handover, struct moe_error *err)
{
	struct service *s = calloc(1, sizeof *s);
	int r;

	if (!s)
		return moe_error_sys(err, -ENOMEM, "service");
	s->config = config;
	s->handover = handover;
	s->started_ns = now_ns();
	s->listener.socket = s->signal_source.fd = -1;
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	raise_limits();
	if (getrandom(&s->instance, sizeof s->instance, GRND_NONBLOCK) != sizeof s->instance)
		s->instance = s->started_ns;
	s->host = calloc(1, sizeof *s->host);
	r = s->host ? open_signals(s, err) : moe_error_sys(err, -ENOMEM, "service");
	if (r == 0) {
		/* Before there is anything to clean up: libnuma ends a process that has no memory. */
		host_read(s->host, false);
		s->estate = estate_open(s->handover, err);
		r = s->estate ? open_listener(s, err) : -ENOMEM;
	}
	if (r == 0)
		r = open_accounts(s, err);
	if (r == 0)
		r = guard_start(err);
	if (r == 0)
		r = start_workers(s, err);
	if (r == 0) {
		revive(s);
		r = watch(s, err);
	}
	if (r == 0)
		r = load_next(s, err);
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

	*ret_leaves = s->leaves;
	return r;
}

/* Everything that the pool still holds comes back first; then nothing else moves any more. */
static void end_sessions(struct service *s)
{
	while (s->peers)
		peer_close(s->peers, NULL);
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
	if (s->listen_source.ready)
		loop_remove(s->loop, &s->listen_source); /* who comes while we end would be left */
	if (s->sched)
		end_sessions(s);
	loop_drain(s->loop);
	pool_free(s->pool);
	sched_free(s->sched);
	registry_clear(&s->registry);
	loop_free(s->loop); /* where io_uring takes nothing any more, the last sources go only now */
	accounts_free(s->accounts);
	guard_stop();
	handover_drop(s->handover, "service");
	handover_drop(s->handover, "listen");
	if (s->estate)
		munmap(s->estate, MOE_RING_PAGE);
	listener_close(&s->listener, s->config->private_mode && strchr(s->config->socket, '/'));
	close_fd(s->signal_source.fd);
	close_fd(s->spare_fd);
	free(s->host);
	free(s);
	return NULL;
}
