/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that outlive their daemon: a real keeper, and under it a real child (handover-puppet.h) that is killed,
 * ends, hangs, is upgraded and asks for too much.
 *
 * `test-handover systemd` (e2e/keep-systemd.t) asks the same of a service manager: what both keepers promise.
 */
#include "daemon/outbox.h"
#include "tests/handover-show.h"

/* -- what outlives a daemon --------------------------------------------------------------------------------------- */

static void test_contents(void)
{
	char path[128], command[256], text[16] = "";
	struct show s;
	int listener, other;

	snprintf(path, sizeof path, "%s/contents", folder);
	listener = listen_at(path);
	begin_and_meet(&s, 64);
	greeted(&s, "1 first 0");
	told(&s, "put memory pool.tinymoe.0 eighteen million bytes", "0");
	told(&s, "put event s-7.doorbell 42", "0");
	snprintf(command, sizeof command, "put socket s-7.sock %s", path);
	told(&s, command, "0");
	other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	told(&s, "take memory pool.tinymoe.0", "-2");
	told(&s, "sync", "0");

	for (int i = 0; i < 3; i++) {
		kill_child(&s);
		greeted(&s, "1 first pool.tinymoe.0 s-7.doorbell s-7.sock 3");
		told(&s, "names pool", "pool.tinymoe.0 1");
		told(&s, "take memory pool.tinymoe.0", "eighteen million bytes");
		told(&s, "take memory pool.tinymoe.0", "-2");
		told(&s, "take socket s-7.sock", "8");
		ok(recv(other, text, sizeof text, 0) == 8 && memcmp(text, "s-7.sock", 8) == 0,
		   "the other end of the socket hears it");
		told(&s, "names s-7.", "s-7.doorbell 1");
	}
	told(&s, "take event s-7.doorbell", "42");

	told(&s, "discard", "0");
	told(&s, "drop pool.tinymoe.0", "0");
	told(&s, "drop nothing.of.this.name", "0");
	told(&s, "sync", "0");
	kill_child(&s);
	greeted(&s, "1 first s-7.doorbell s-7.sock 2");
	told(&s, "discard", "0");
	told(&s, "sync", "0");
	ok(recv(other, text, sizeof text, 0) == 0, "what was discarded hangs up");
	ok(finish(&s) == 0, "SIGTERM ends both");
	close(other);
	close(listener);
	unlink(path);
}

static void test_names(void)
{
	char command[256];
	struct show s;

	begin_and_meet(&s, 64);
	told(&s, "put memory a x", "0");
	told(&s, "put memory a x", "-17");
	told(&s, "put memory B x", "-22");
	told(&s, "put memory a:b x", "-22");
	told(&s, "put memory a_b x", "-22");
	told(&s, "put memory a.socket x", "-22");
	snprintf(command, sizeof command, "put memory %0101d x", 1);
	told(&s, command, "-22");
	snprintf(command, sizeof command, "put memory %0100d x", 2);
	told(&s, command, "0");
	told(&s, "drop a", "0");
	told(&s, "put memory a again", "0");
	told(&s, "sync", "0");
	kill_child(&s);
	told(&s, "take memory a", "again");
	told(&s, "put memory a x", "-17");
	snprintf(command, sizeof command, "take memory %0100d", 2);
	told(&s, command, "x");

	told(&s, "twice one another", "0 0");
	told(&s, "sync", "0");
	ok(under_systemd || log_has(&s, "another is not kept: it is the same open file as one"),
	   "one open file has one name");
	kill_child(&s);
	told(&s, "take memory one", "one");
	told(&s, "take memory another", "-2");
	ok(finish(&s) == 0, "the end");
}

static void test_without_keeper(void)
{
	struct handover *h = NULL;
	uint32_t cursor = 0;

	/* Another process's: a child that inherits the variables must not take them for its own. */
	setenv("LISTEN_PID", "1", 1);
	setenv("LISTEN_FDS", "1", 1);
	unsetenv("NOTIFY_SOCKET");
	require(handover_new(&h, NULL) == 0, "a handover without a keeper");
	for (int i = 0; i < 2; i++) {
		ok(!handover_keeps(h) && handover_put(h, 0, "a") == -EOPNOTSUPP && handover_take(h, "a") == -ENOENT,
		   "keeps nothing");
		ok(handover_drop(h, "a") == 0 && handover_sync(h, 0) == 0 && handover_notify(h, "READY=1") == 0 &&
			   !handover_next(h, "", &cursor),
		   "and has nothing to do");
		handover_discard_rest(h);
		h = handover_free(h);
	}

	setenv("NOTIFY_SOCKET", "/nobody/listens/here", 1);
	setenv("FDSTORE", "16", 1);
	ok(handover_new(&h, NULL) == 0 && !handover_keeps(h), "a keeper that cannot be reached keeps nothing");
	handover_free(h);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("FDSTORE");
}

#define NAMES 300

/* Names that come and go at random, against a list of them, up to as many as the keeper takes; and what the keeper has
 * heard of them, which reads only now and then. */
struct names {
	bool have[NAMES], heard[NAMES];
	uint32_t n, wrong, waited;
};

static void hear(struct names *names, int keeper)
{
	char message[256];
	ssize_t bytes;
	uint32_t name;

	while ((bytes = recv(keeper, message, sizeof message - 1, MSG_DONTWAIT)) > 0) {
		message[bytes] = '\0';
		if (sscanf(message, "FDSTORE=1 FDNAME=s%u.journal", &name) == 1 && name < NAMES) {
			names->wrong += names->heard[name];
			names->heard[name] = true;
		} else if (sscanf(message, "FDSTOREREMOVE=1 FDNAME=s%u.journal", &name) == 1 && name < NAMES) {
			names->wrong += !names->heard[name];
			names->heard[name] = false;
		} else {
			names->wrong++;
		}
	}
}

static void come_and_go(struct names *names, struct handover *h, int keeper, uint32_t most)
{
	unsigned long long seed = tap_seed();

	for (int i = 0; i < 20000; i++) {
		const unsigned long long draw = tap_random(&seed);
		const uint32_t name = (uint32_t)(draw % NAMES);

		if (draw >> 32 & 1) {
			const int r = handover_put(h, keeper, "s%u.journal", name);

			names->wrong += r != (names->have[name] ? -EEXIST : names->n == most ? -ENOSPC : 0);
			names->n += r == 0;
			names->have[name] |= r == 0;
		} else {
			names->wrong += handover_drop(h, "s%u.journal", name) != 0;
			names->n -= names->have[name];
			names->have[name] = false;
		}
		if (draw >> 33 & 1 && i % 1000 == 0) {
			names->waited += handover_post(h) > 0;
			hear(names, keeper);
		}
	}
	for (bool more = true; more; hear(names, keeper))
		more = handover_post(h) > 0;
}

static void test_table(void)
{
	const int keeper = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct handover *h = NULL;
	struct names names = {.n = 0};
	const int fds = leaks_fds(getpid());

	snprintf(address.sun_path, sizeof address.sun_path, "%s/table", folder);
	require(keeper >= 0 && bind(keeper, (struct sockaddr *)&address, sizeof address) == 0, "a keeper's socket");
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	setenv("FDSTORE", "250", 1);
	require(handover_new(&h, NULL) == 0 && handover_keeps(h), "a handover with room for 250");
	come_and_go(&names, h, keeper, 250);
	ok(names.wrong == 0, "20000 names that come and go: %u answers or messages not as a list of them has it",
	   names.wrong);
	ok(names.waited > 0, "%u times messages waited for the keeper", names.waited);
	ok(memcmp(names.have, names.heard, sizeof names.have) == 0, "the keeper has heard of what is there, no more");
	handover_free(h);
	ok(leaks_fds(getpid()) == fds, "no descriptor is left");
	unsetenv("NOTIFY_SOCKET");
	unsetenv("FDSTORE");
	unlink(address.sun_path);
	close(keeper);
}

/* Sessions leave a thirty-second of the store to what else is kept, models above all. */
static void test_left_to_models(void)
{
	const int keeper = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct handover *h = NULL;
	uint32_t sessions = 0, models = 0;

	snprintf(address.sun_path, sizeof address.sun_path, "%s/left", folder);
	require(keeper >= 0 && bind(keeper, (struct sockaddr *)&address, sizeof address) == 0, "a keeper's socket");
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	setenv("FDSTORE", "64", 1);
	require(handover_new(&h, NULL) == 0, "a handover with room for 64");
	while (handover_put(h, keeper, "s%u.bell", sessions) == 0)
		sessions++;
	while (handover_put(h, keeper, "m%u.books", models) == 0)
		models++;
	ok(sessions == 62 && models == 2, "62 of 64 are for sessions (%u), 2 are left to models (%u)", sessions,
	   models);
	ok(handover_drop(h, "s0.bell") == 0 && handover_put(h, keeper, "s0.bell") == -ENOSPC &&
		   handover_put(h, keeper, "service") == 0,
	   "and to what else is kept, whose name begins alike");
	handover_free(h);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("FDSTORE");
	unlink(address.sun_path);
	close(keeper);
}

/* -- who is listened to, and how much ----------------------------------------------------------------------------- */

static void test_limit(void)
{
	struct show s;

	begin_and_meet(&s, 8);
	told(&s, "fill 9 3", "8 -28");
	/* That was the daemon's own count; now one that does not count. */
	told(&s, "send memory x FDSTORE=1 FDNAME=one.too.many", "0");
	told(&s, "sync", "0");
	ok(under_systemd || log_has(&s, "one.too.many is not kept"), "the keeper refuses as well, by name");
	told(&s, "drop 000", "0");
	told(&s, "send memory y FDSTORE=1", "0");
	if (!under_systemd) /* which keeps it under a name of its own */
		told(&s, "send memory y FDSTORE=1 FDNAME=with:colon", "0");
	told(&s, "sync", "0");
	kill_child(&s);
	greeted(&s, "1 first 001 002 003 004 005 006 007 stored 8");
	ok(finish(&s) == 0, "the end");
}

/* All names are one string of the environment, which ends at 128 KiB: with more, no exec works, and all is lost. */
static void test_room_for_names(void)
{
	const int most = HANDOVER_NAMES_BYTES_MAX / (HANDOVER_NAME_MAX + 1);
	char command[256], answer[64];
	uint64_t killed;
	struct show s;

	begin_and_meet(&s, 2000);
	snprintf(answer, sizeof answer, "%d -28", most);
	told(&s, "fill 2000 100", answer);
	if (!under_systemd) { /* which does not count names, and cannot start the service then */
		snprintf(command, sizeof command, "send memory x FDSTORE=1 FDNAME=%0100d", 9999);
		told(&s, command, "0");
		told(&s, "sync", "0");
		ok(log_has(&s, "no room for names"), "the keeper counts them too");
	}
	told(&s, "sync", "0");
	killed = now_ns();
	kill_child(&s);
	diag("SIGKILL to the first words of the next, with %d descriptors: %.1f ms", most,
	     (double)(now_ns() - killed) / 1e6);
	ok(atoi(strrchr(s.greeting, ' ')) == most, "a daemon starts with as many names as there is room for");
	ok(finish(&s) == 0, "the end");
}

static void test_many(void)
{
	struct show s;
	int before;

	begin_and_meet(&s, 1200);
	kill_child(&s); /* systemd takes a timer then */
	before = leaks_fds(s.keeper);
	told(&s, "fill 1000 4", "1000 0");
	told(&s, "sync", "0");
	ok(comes_to_hold(s.keeper, before + 1000), "the keeper holds a thousand");
	kill_child(&s);
	told(&s, "take memory 0000", "x");
	told(&s, "take memory 0999", "x");
	told(&s, "discard", "0");
	told(&s, "drop 0000", "0");
	told(&s, "drop 0999", "0");
	told(&s, "sync", "0");
	ok(comes_to_hold(s.keeper, before), "and none when all are dropped");
	for (int i = 3; i < KEEPER_DEATHS_MAX; i++) {
		told(&s, "fill 100 3", "100 0");
		kill_child(&s);
		told(&s, "discard", "0");
	}
	told(&s, "sync", "0");
	ok(comes_to_hold(s.keeper, before), "over and over");
	ok(finish(&s) == 0, "the end");
}

static void test_hang_up(void)
{
	char path[128], command[256];
	struct show s;
	int listener, others[3];

	snprintf(path, sizeof path, "%s/hang-up", folder);
	listener = listen_at(path);
	begin_and_meet(&s, 64);
	for (int i = 0; i < 3; i++) {
		if (i < 2)
			snprintf(command, sizeof command, "put socket s-%d %s", i, path);
		else
			snprintf(command, sizeof command, "send socket %s FDSTORE=1 FDNAME=s-2 FDPOLL=0", path);
		told(&s, command, "0");
		others[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	}
	told(&s, "put memory ring x", "0");
	told(&s, "sync", "0");
	close(others[0]);
	close(others[2]);
	kill_child(&s);
	greeted(&s, "1 first s-1 s-2 ring 3");
	ok(finish(&s) == 0, "the end");
	close(others[1]);
	close(listener);
	unlink(path);
}

/* Another process that reaches the socket, by a descriptor that it has no business with. */
static void test_stranger(void)
{
	static const char message[] = "FDSTOREREMOVE=1\nFDNAME=pool";
	const int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct show s;

	begin_and_meet(&s, 64);
	told(&s, "put memory pool weights", "0");
	if (under_systemd)
		snprintf(address.sun_path, sizeof address.sun_path, "%s", s.socket);
	else
		snprintf(address.sun_path, sizeof address.sun_path, "/proc/%d%s", s.child, strrchr(s.socket, '/') - 3);
	if (connect(sock, (struct sockaddr *)&address, sizeof address) == 0)
		ok(send(sock, message, sizeof message - 1, 0) > 0, "a stranger has sent to %s", address.sun_path);
	else
		tap_skip("%s: %s", address.sun_path, strerror(errno));
	told(&s, "sync", "0");
	kill_child(&s);
	told(&s, "take memory pool", "weights");
	ok(finish(&s) == 0, "the end");
	close(sock);
}

static void test_barrier(void)
{
	struct show s;
	char line[64];
	int status;

	begin_and_meet(&s, 64);
	told(&s, "put memory pool weights", "0");
	kill(s.keeper, SIGSTOP);
	waitpid(s.keeper, &status, WUNTRACED);
	told(&s, "barrier", "0 -110");
	kill(s.keeper, SIGCONT);
	ok(read_line(s.from, line, sizeof line) && strcmp(line, "1") == 0, "it hangs up when the keeper goes on");
	told(&s, "sync", "0");
	ok(finish(&s) == 0, "the end");
}

/* More than its socket has room for. */
static void test_waits(void)
{
	char command[64], answer[64], length[16] = "";
	const int fd = open("/proc/sys/net/unix/max_dgram_qlen", O_RDONLY | O_CLOEXEC);
	int status, n;
	struct show s;

	require(fd >= 0 && read(fd, length, sizeof length - 1) > 0 && atoi(length) < 1000, "the length of a queue");
	close(fd);
	n = atoi(length) + 100;
	begin_and_meet(&s, 1500);
	told(&s, "post", "none waits");
	kill(s.keeper, SIGSTOP);
	waitpid(s.keeper, &status, WUNTRACED);
	snprintf(command, sizeof command, "fill %d 4", n);
	snprintf(answer, sizeof answer, "%d 0", n);
	told(&s, command, answer);
	told(&s, "post", "some wait");
	snprintf(command, sizeof command, "drop %04d", n - 1); /* it has not heard of that one */
	told(&s, command, "0");
	told(&s, "drop 0000", "0");
	usleep(OUTBOX_LATE_NS / 1000 + 100000);
	told(&s, "put memory last weights", "0");
	kill(s.keeper, SIGCONT);
	told(&s, "sync", "0");
	told(&s, "post", "none waits");
	ok(under_systemd || (log_has(&s, "takes no messages") && log_has(&s, "takes messages again")),
	   "that it takes none is said after a while, and that it does again");
	kill_child(&s);
	ok(atoi(strrchr(s.greeting, ' ')) == n - 1, "it keeps all that waited but what was dropped: %s",
	   strrchr(s.greeting, ' '));
	told(&s, "take memory 0000", "-2");
	told(&s, "take memory 0001", "x");
	snprintf(command, sizeof command, "take memory %04d", n - 2);
	told(&s, command, "x");
	snprintf(command, sizeof command, "take memory %04d", n - 1);
	told(&s, command, "-2");
	told(&s, "take memory last", "weights");
	ok(finish(&s) == 0, "the end");
}

/* -- deaths and ends ---------------------------------------------------------------------------------------------- */

static void test_gives_up(void)
{
	struct show s;

	begin_and_meet(&s, 64);
	told(&s, "put memory pool weights", "0");
	for (int i = 1; i < KEEPER_DEATHS_MAX; i++)
		kill_child(&s);
	kill(s.child, SIGKILL);
	ok(!meet(&s), "no sixth daemon");
	ok(log_has(&s, "died 5 times in 10 s, now by signal 9 (Killed); giving up, and letting 1 kept"), "and says so");
	ok(ended(&s) == 1, "it ends with 1");
}

static void test_codes(void)
{
	static const struct {
		int code, ready, again;
	} cases[] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0},  {77, 0, 0}, {0, 1, 0},
		     {1, 1, 1}, {2, 1, 0}, {77, 1, 0}, {127, 1, 1}};
	char command[32];
	struct show s;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		begin_and_meet(&s, 64);
		if (cases[i].ready)
			told(&s, "ready", "0");
		snprintf(command, sizeof command, "exit %d", cases[i].code);
		dprintf(s.to, "%s\n", command);
		ok(meet(&s) == cases[i].again, "%s %s: %s", command, cases[i].ready ? "after READY" : "at the start",
		   cases[i].again ? "it starts again" : "that is the end");
		if (cases[i].again)
			finish(&s);
		else
			ok(ended(&s) == cases[i].code, "with its code");
	}
}

static void test_ready(void)
{
	struct show s;
	char line[64];

	begin_and_meet(&s, 64);
	told(&s, "ready", "0");
	ok(read_line(s.ready, line, sizeof line) && strcmp(line, "READY") == 0, "READY is passed on");
	kill_child(&s);
	told(&s, "ready", "0");
	told(&s, "sync", "0");
	ok(!read_line(s.ready, line, sizeof line), "once");
	ok(finish(&s) == 0, "the end");
}

/* One that was ready has to say that it lives. */
static void test_watchdog(void)
{
	struct show s;

	watchdog_ms = 3000;
	begin_and_meet(&s, 64);
	watchdog_ms = 0;
	told(&s, "watched", "3000000");
	told(&s, "put memory pool weights", "0");
	usleep(3500000);
	told(&s, "sync", "0"); /* before READY it may take its time */
	told(&s, "ready", "0");
	for (int i = 0; i < 8; i++) {
		usleep(500000);
		told(&s, "lives", "0");
	}
	ok(meet(&s), "one that says it no more is killed, and another comes");
	told(&s, "take memory pool", "weights");
	told(&s, "ready", "0");
	kill(s.child, SIGSTOP);
	ok(meet(&s), "also one that stands still");
	ok(log_has(&s, "that it lives"), "the log says why");
	told(&s, "take memory pool", "weights");
	ok(finish(&s) == 0, "the end");
}

static void test_ends(void)
{
	struct show s;

	begin_and_meet(&s, 64);
	kill(s.keeper, SIGINT);
	ok(ended(&s) == 0, "SIGINT ends both");

	begin_and_meet(&s, 64);
	told(&s, "deaf", "0");
	ok(finish(&s) == 128 + SIGKILL, "a daemon that does not end is killed");

	begin_and_meet(&s, 64);
	kill(s.keeper, SIGKILL);
	ok(!meet(&s), "the daemon ends with a keeper that was killed");
	ended(&s);
}

static void test_upgrade(void)
{
	char script[128];
	struct show s;
	FILE *out;

	begin_and_meet(&s, 64);
	told(&s, "put memory pool weights", "0");
	snprintf(script, sizeof script, "%s/script", folder);
	out = fopen(script, "we");
	fprintf(out, "#!/bin/sh\nPUPPET=second exec '%s' puppet\n", self);
	fclose(out);

	rename(script, s.program); /* not executable yet */
	kill(s.keeper, SIGUSR2);
	while (!log_has(&s, "no upgrade"))
		usleep(1000);
	told(&s, "sync", "0"); /* the running one goes on */
	chmod(s.program, 0700);
	kill(s.keeper, SIGUSR2);
	require(meet(&s), "another daemon");
	greeted(&s, "1 second pool 1");
	told(&s, "take memory pool", "weights");
	told(&s, "deaf", "0");
	kill(s.keeper, SIGUSR2);
	require(meet(&s), "and another, though the one before did not end by itself");
	told(&s, "take memory pool", "weights");
	ok(finish(&s) == 0, "the end");
}

static void test_both_keepers(void)
{
	test_contents();
	test_names();
	test_limit();
	test_room_for_names();
	test_many();
	test_hang_up();
	test_stranger();
	test_barrier();
	test_waits();
}

static void test_own_keeper(void)
{
	test_without_keeper();
	test_table();
	test_left_to_models();
	test_gives_up();
	test_codes();
	test_ready();
	test_watchdog();
	test_ends();
	test_upgrade();
}

int main(int argc, char **argv)
{
	char command[128];

	if (argc > 1 && strcmp(argv[1], "puppet") == 0)
		return puppet_main();
	under_systemd = argc > 1 && strcmp(argv[1], "systemd") == 0;
	signal(SIGPIPE, SIG_IGN);
	log_open("test", LOG_LEVEL_ERR);
	tap_tmp(folder, "moe-handover.XXXXXX");
	if (!mkdtemp(folder) || keeper_find_program(self, sizeof self, NULL) < 0) {
		tap_skip("needs /tmp and /proc");
		return tap_done();
	}
	test_both_keepers();
	if (!under_systemd)
		test_own_keeper();
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	return system(command) != 0 || tap_done();
}
