/* SPDX-License-Identifier: MIT */
#include "daemon/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/events.h"
#include "daemon/handover.h"
#include "daemon/keeper-message.h"
#include "daemon/keeper-store.h"

#define EVENTS 16
#define MESSAGES_PER_TURN 64
#define NO_EXEC 127

struct keeper {
	const struct keeper_params *params;
	pid_t self, child; /* child 0: none */
	int signals;
	int notify;  /* what the child's messages come from ... */
	int address; /* ... and an O_PATH descriptor of the same socket, by which the child finds it */
	int ready_fd;
	sigset_t outer_mask;

	struct keeper_store store;

	uint64_t deaths[KEEPER_DEATHS_MAX]; /* the last ones, in a circle */
	uint32_t n_deaths;
	uint64_t start_ns;       /* when the child is started, 0: no start is due */
	uint64_t kill_ns;        /* when it is killed, 0: it was not asked to end */
	uint64_t heard_by_ns;    /* when it must have said that it lives, 0: it need not */
	bool ready, child_ready; /* a daemon has said so, and the one that runs */
	uint32_t failed_starts;  /* in a row, after READY of an earlier one */
	bool upgrading, ending, done;
	int code;
};

/* -- messages ----------------------------------------------------------------------------------------------------- */

static void expect_a_word(struct keeper *k)
{
	k->heard_by_ns = k->params->watchdog_ms ? now_ns() + (uint64_t)k->params->watchdog_ms * 1000000u : 0;
}

static void child_is_ready(struct keeper *k)
{
	static const char word[] = "READY\n";

	k->ready = k->child_ready = true;
	k->failed_starts = 0;
	expect_a_word(k);
	if (k->ready_fd >= 0 && write(k->ready_fd, word, sizeof word - 1) < 0)
		log_warning("keeper: --ready-fd %d: %s", k->ready_fd, strerror(errno));
	k->ready_fd = close_fd(k->ready_fd);
}

static void hear(struct keeper *k, unsigned said)
{
	if (said & KEEPER_READY)
		child_is_ready(k);
	else if (said & KEEPER_WATCHDOG && k->heard_by_ns)
		expect_a_word(k);
}

/* Closing the descriptors that came is also the answer to BARRIER=1. */
static void serve_messages(struct keeper *k, uint32_t n)
{
	static struct keeper_message message;

	while (n-- > 0) {
		if (!keeper_message_receive(&message, k->notify))
			return;
		if (k->child && message.sender == k->child)
			hear(k, keeper_message_obey(&message, &k->store));
		keeper_message_close(&message);
	}
}

/* -- the child ---------------------------------------------------------------------------------------------------- */

static void set_number(const char *variable, const char *format, long n)
{
	char text[64];

	snprintf(text, sizeof text, format, n);
	setenv(variable, text, 1);
}

/* In systemd's way. Nothing of the keeper's has these numbers, so nothing is in the way. */
static void hand_back(const struct keeper *k)
{
	const int address = HANDOVER_LISTEN_FD + (int)k->store.n;
	const char *names = keeper_store_hand_back(&k->store);

	dup2(k->address, address);
	set_number("NOTIFY_SOCKET", "/proc/self/fd/%ld", address);
	set_number("FDSTORE", "%ld", k->store.max);
	if (k->params->watchdog_ms) {
		set_number("WATCHDOG_PID", "%ld", getpid());
		set_number("WATCHDOG_USEC", "%ld", 1000L * k->params->watchdog_ms);
	}
	if (k->store.n > 0) {
		set_number("LISTEN_PID", "%ld", getpid());
		set_number("LISTEN_FDS", "%ld", k->store.n);
		setenv("LISTEN_FDNAMES", names, 1);
	}
}

__attribute__((noreturn)) static void become_child(const struct keeper *k)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != k->self) /* it died before that */
		_exit(NO_EXEC);
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	unsetenv("WATCHDOG_PID"); /* those of whoever started us */
	unsetenv("WATCHDOG_USEC");
	hand_back(k);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
	sigprocmask(SIG_SETMASK, &k->outer_mask, NULL);
	execv(k->params->program, k->params->argv);
	log_err("keeper: %s: %s", k->params->program, strerror(errno));
	_exit(NO_EXEC);
}

static void end(struct keeper *k, int code)
{
	k->done = true;
	k->code = code;
}

/* How many deaths are not older than the window; this one counts. */
static uint32_t count_death(struct keeper *k)
{
	const uint64_t now = now_ns();
	uint32_t recent = 0;

	k->deaths[k->n_deaths++ % KEEPER_DEATHS_MAX] = now;
	for (uint32_t i = 0; i < MIN(k->n_deaths, KEEPER_DEATHS_MAX); i++)
		recent += now - k->deaths[i] < KEEPER_DEATHS_NS;
	return recent;
}

static void child_died(struct keeper *k, const char *how)
{
	const uint32_t recent = getenv("MOE_CRASH_PLAN") ? 0 : count_death(k); /* those of daemon/crash.h are meant */
	const uint64_t wait_ms = recent < 2 ? 0 : (uint64_t)KEEPER_BACKOFF_MS << (recent - 2);

	if (recent >= KEEPER_DEATHS_MAX) {
		event_log(EVENT_GIVEN_UP, FACTS(.count = k->store.n, .reason = how),
			  "keeper: the daemon died %u times in %llu s, now by %s; giving up, and letting %u kept "
			  "descriptors go. The log above says why it died; start again when that is mended",
			  recent, KEEPER_DEATHS_NS / 1000000000ull, how, k->store.n);
		end(k, 1);
		return;
	}
	k->start_ns = now_ns() + wait_ms * 1000000u;
	event_log(EVENT_DIED, FACTS(.count = k->store.n, .usec = wait_ms * 1000, .reason = how),
		  "keeper: the daemon died by %s; it starts again in %.1f s, with %u kept descriptors", how,
		  (double)wait_ms / 1e3, k->store.n);
}

/* What is kept waits for a daemon that can start: with other options or another program, or in better times. */
static void start_failed(struct keeper *k, int code)
{
	const uint64_t wait_ms = MIN((uint64_t)KEEPER_BACKOFF_MS << MIN(k->failed_starts, 16), KEEPER_RETRY_MS);

	k->failed_starts++;
	k->start_ns = now_ns() + wait_ms * 1000000u;
	log_err("keeper: the daemon could not start (exit code %d, its reason is above); %u descriptors stay kept, and "
		"the "
		"clients wait. Next try in %.1f s, or at SIGUSR2; SIGTERM gives up and lets all go",
		code, k->store.n, (double)wait_ms / 1e3);
}

static void start_child(struct keeper *k)
{
	const pid_t pid = fork();

	k->start_ns = 0;
	if (pid == 0)
		become_child(k);
	if (pid < 0) {
		log_err("keeper: fork: %s", strerror(errno));
		child_died(k, "lack of a process");
		return;
	}
	k->child = pid;
	k->child_ready = false;
	k->store.refused = false;
	log_debug("keeper: the daemon is process %d, with %u kept descriptors", pid, k->store.n);
}

/* A code is the daemon's own decision: what keeps the first one from ever being ready does not mend itself. A later one
 * has what is kept to go on with, once its options or its program are mended. Anything else is a death. */
static void child_ended(struct keeper *k, int status)
{
	const bool exited = WIFEXITED(status);
	const int code = exited ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	/* SIGUSR2 went to the daemon itself: one that ends for good drops this. */
	const bool left = exited && code == 0 && keeper_store_has(&k->store, "service");
	char how[64];

	k->child = 0;
	k->kill_ns = k->heard_by_ns = 0;
	if (k->ending) {
		/* Before it could handle them. */
		end(k, code == 128 + SIGTERM || code == 128 + SIGINT || code == 128 + SIGHUP ? 0 : code);
	} else if (k->upgrading || left) {
		k->upgrading = false;
		k->start_ns = now_ns();
		log_info("keeper: the daemon has ended for its upgrade; %s starts with %u kept descriptors",
			 k->params->program, k->store.n);
	} else if (exited && code != 0 && k->ready && !k->child_ready) {
		start_failed(k, code);
	} else if (exited && (!k->ready || code == 0 || code == 2 || code == 77)) {
		end(k, code);
	} else {
		if (exited)
			snprintf(how, sizeof how, "exit code %d", code);
		else
			snprintf(how, sizeof how, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
		child_died(k, how);
	}
}

/* All that a dead child has sent is in the queue: it comes before its end. */
static void reap(struct keeper *k)
{
	siginfo_t info = {0};
	int status;

	if (!k->child || waitid(P_PID, (id_t)k->child, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
		return;
	serve_messages(k, UINT32_MAX);
	if (waitpid(k->child, &status, WNOHANG) == k->child)
		child_ended(k, status);
}

/* Children that close what the store cannot (keeper-store.c), and, of the first process of a container, any orphan. */
static void reap_others(const struct keeper *k)
{
	siginfo_t info = {0};

	while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
	       info.si_pid != k->child) {
		waitpid(info.si_pid, NULL, WNOHANG);
		info.si_pid = 0;
	}
}

static void ask_to_end(struct keeper *k, int signo)
{
	kill(k->child, signo);
	k->heard_by_ns = 0;
	if (!k->kill_ns)
		k->kill_ns = now_ns() + (uint64_t)k->params->stop_ms * 1000000u;
}

static void upgrade(struct keeper *k)
{
	if (k->ending || k->upgrading)
		return;
	if (access(k->params->program, X_OK) < 0) {
		log_err("keeper: no upgrade: %s: %s; the running daemon goes on", k->params->program, strerror(errno));
		return;
	}
	if (k->child) {
		log_info("keeper: upgrade: the daemon ends, and starts again from %s", k->params->program);
		k->upgrading = true;
		ask_to_end(k, SIGUSR2); /* and leave everything */
	} else {
		k->start_ns = now_ns();
	}
}

static void serve_signals(struct keeper *k)
{
	struct signalfd_siginfo info;

	while (read(k->signals, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD) {
			reap(k);
			reap_others(k);
		} else if (info.ssi_signo == SIGUSR2) {
			upgrade(k);
		} else if (info.ssi_signo == SIGHUP && info.ssi_code != SI_KERNEL) {
			if (k->child && k->child_ready)
				kill(k->child, SIGHUP); /* it reads its configuration again */
		} else {
			k->ending = true;
			if (k->child)
				ask_to_end(k, (int)info.ssi_signo);
			else
				end(k, 0);
		}
	}
}

/* -- the loop ----------------------------------------------------------------------------------------------------- */

static int wait_ms(const struct keeper *k)
{
	const uint64_t now = now_ns(), by = k->kill_ns ? k->kill_ns : k->heard_by_ns;
	const uint64_t at = k->start_ns ? k->start_ns : by;

	if (!at)
		return -1;
	return at <= now ? 0 : (int)DIV_UP(at - now, 1000000u);
}

/* With nothing left to be heard. Who was stopped together with the daemon, or slept through it, waits once more. */
static void look_at_silence(struct keeper *k, uint64_t now)
{
	if (now - k->heard_by_ns > (uint64_t)k->params->watchdog_ms * 500000u) {
		expect_a_word(k);
		return;
	}
	log_err("keeper: the daemon (process %d) has not said for %.1f s that it lives; it ends by SIGABRT, and starts "
		"again",
		k->child, (double)k->params->watchdog_ms / 1e3);
	ask_to_end(k, SIGABRT);
}

static void serve_clock(struct keeper *k, bool quiet)
{
	const uint64_t now = now_ns();

	if (quiet && k->child && k->heard_by_ns && k->heard_by_ns <= now)
		look_at_silence(k, now);

	if (k->kill_ns && k->kill_ns <= now && k->child) {
		log_err("keeper: the daemon was asked to end %u ms ago and has not; killed", k->params->stop_ms);
		kill(k->child, SIGKILL);
		k->kill_ns = 0;
	}
	/* Not before all that has hung up is dropped. */
	if (quiet && k->start_ns && k->start_ns <= now)
		start_child(k);
}

static int run(struct keeper *k)
{
	struct epoll_event events[EVENTS];

	k->start_ns = now_ns();
	while (!k->done) {
		const int n = epoll_wait(k->store.epoll, events, EVENTS, wait_ms(k));

		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n; i++) {
			if (events[i].data.fd == k->signals)
				serve_signals(k);
			else if (events[i].data.fd == k->notify)
				serve_messages(k, MESSAGES_PER_TURN);
			else
				keeper_store_drop_hung_up(&k->store, events[i].data.fd);
		}
		serve_clock(k, n == 0);
	}
	return 0;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static int raise_fd(int *fd, int first)
{
	const int high = fcntl(*fd, F_DUPFD_CLOEXEC, first);

	if (high < 0)
		return -errno;
	close_fd(*fd);
	*fd = high;
	return 0;
}

/* A private folder for the blink of an eye in which the socket has a name. */
static int make_folder(char *ret, size_t size)
{
	const char *folders[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/run", "/tmp"};

	for (size_t i = 0; i < ARRAY_LEN(folders); i++)
		if (folders[i] && snprintf(ret, size, "%s/moe-keep.XXXXXX", folders[i]) < (int)size && mkdtemp(ret))
			return open(ret, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return -1;
}

/* A socket without a name, and a descriptor of its inode: who has that can connect through /proc/self/fd. */
static int open_notify(struct keeper *k, struct moe_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[4096];
	_cleanup_close_ int folder = make_folder(path, sizeof path);
	const int on = 1;
	int r;

	if (folder < 0)
		return moe_error_sys(err, -errno,
				     "--keep: no folder to make a socket in: $XDG_RUNTIME_DIR, $TMPDIR, "
				     "/run, /tmp");
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/notify", folder);
	k->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	r = k->notify < 0 || setsockopt(k->notify, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0 ||
			    bind(k->notify, (struct sockaddr *)&address, sizeof address) < 0
		    ? -errno
		    : 0;
	if (r == 0)
		k->address = openat(folder, "notify", O_PATH | O_CLOEXEC);
	if (r == 0 && k->address < 0)
		r = -errno;
	unlinkat(folder, "notify", 0);
	rmdir(path);
	return r < 0 ? moe_error_sys(err, r, "--keep: the daemon's socket in %s (is /proc mounted?)", path) : 0;
}

static int open_signals(struct keeper *k, struct moe_error *err)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &k->outer_mask);
	signal(SIGPIPE, SIG_IGN); /* of --ready-fd */
	signal(SIGXFSZ, SIG_IGN); /* of a log that may not grow */
	signal(SIGCHLD, SIG_DFL); /* whoever started us may have ignored it */
	k->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return k->signals < 0 ? moe_error_sys(err, -errno, "signalfd") : 0;
}

static int watch(struct keeper *k, struct moe_error *err)
{
	int *fds[] = {&k->signals, &k->notify, &k->address, &k->store.epoll};
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(fds); i++)
		r = raise_fd(fds[i], k->store.first);
	for (size_t i = 0; r == 0 && i < 2; i++) {
		struct epoll_event event = {.events = EPOLLIN, .data.fd = *fds[i]};

		if (epoll_ctl(k->store.epoll, EPOLL_CTL_ADD, *fds[i], &event) < 0)
			r = -errno;
	}
	return r < 0 ? moe_error_sys(err, r, "--keep: epoll") : 0;
}

static int begin(struct keeper *k, struct moe_error *err)
{
	int r = keeper_store_init(&k->store, k->params->fds_max, err);

	if (r == 0 && k->ready_fd >= 0 && fcntl(k->ready_fd, F_SETFD, FD_CLOEXEC) < 0) {
		r = moe_error_sys(err, -errno, "--ready-fd %d", k->ready_fd);
		k->ready_fd = -1;
	}
	if (r == 0)
		r = open_notify(k, err);
	if (r == 0)
		r = open_signals(k, err);
	return r == 0 ? watch(k, err) : r;
}

static void clear(struct keeper *k)
{
	keeper_store_clear(&k->store);
	close_fd(k->notify);
	close_fd(k->address);
	close_fd(k->signals);
	close_fd(k->ready_fd);
}

int keeper_run(const struct keeper_params *params, int *ret_code, struct moe_error *err)
{
	struct keeper k = {
		.params = params,
		.self = getpid(),
		.store.epoll = -1,
		.signals = -1,
		.notify = -1,
		.address = -1,
		.ready_fd = params->ready_fd,
	};
	int r = begin(&k, err);

	if (r == 0) {
		r = run(&k);
		if (r < 0)
			moe_error_sys(err, r, "--keep: epoll_wait");
	}
	if (r == 0)
		*ret_code = k.code;
	clear(&k);
	return r;
}

int keeper_find_program(char *ret, uint32_t size, struct moe_error *err)
{
	const ssize_t n = readlink("/proc/self/exe", ret, size);

	if (n < 0)
		return moe_error_sys(err, -errno, "--keep: /proc/self/exe");
	if ((uint32_t)n >= size)
		return moe_error_set(err, -ENAMETOOLONG, "--keep: this program's path has over %u bytes", size - 1);
	ret[n] = '\0';
	return 0;
}
