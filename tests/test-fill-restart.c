/* SPDX-License-Identifier: MIT */
/*
 * fill-restart - what sessions share of a budget for fills outlives their daemon: it is killed while both sessions have
 * hundreds of fills in flight, and the next one runs again what was not completed, with as many bytes at a time as one
 * budget allows, or two of sessions that name two devices. Each fill is completed once, nothing is left.
 */
#include <linux/close_range.h>

#include "tests/fill-client.h"

#define ENTRIES 1024 /* fills of each session: milliseconds of copying, in which the next daemon is asked */
#define KILLS 12
#define KILLS_MAX 2000 /* to see fills of the next daemon with the pool */

static uint8_t *content; /* of the slots when all fills have come */
static uint64_t again;   /* fills that a killed daemon had claimed and not completed */

/* -- the daemon that dies ------------------------------------------------------------------------------------------ */

/* Another one than `before`, and a connection to it. */
static int meet(uint32_t before, uint32_t *ret_pid)
{
	for (;;) {
		const int sock = connect_raw();
		const struct moe_msg_hello *m = (const struct moe_msg_hello *)answer;

		if (hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY) && m->pid != before) {
			*ret_pid = m->pid;
			return sock;
		}
		close(sock);
	}
}

static void kill_daemon(int *sock, uint32_t *pid)
{
	close(*sock);
	kill((pid_t)*pid, SIGKILL);
	*sock = meet(*pid, pid);
}

/* -- rounds -------------------------------------------------------------------------------------------------------- */

static bool claimed(const struct ring *r)
{
	return __atomic_load_n(&r->daemon->sq_head, __ATOMIC_ACQUIRE) == r->tail;
}

static bool slots_good(struct ring *r)
{
	const bool good = memcmp(r->slots, content, SLOTS * RECORD) == 0;

	memset(r->slots, 0xa5, SLOTS * RECORD);
	return good;
}

/* Two sessions' fills under a kill. The most that the next daemon is seen to have with the pool; UINT64_MAX: a fill is
 * lost or wrong. */
static uint64_t killed_round(int *sock, uint32_t *pid, struct ring r[2])
{
	uint64_t most = 0;

	post_fills(&r[0], ENTRIES);
	post_fills(&r[1], ENTRIES);
	while (!claimed(&r[0]) || !claimed(&r[1]))
		sched_yield();
	kill_daemon(sock, pid);
	for (int i = 0; i < 2; i++)
		again += r[i].tail - __atomic_load_n(&r[i].daemon->cq_tail, __ATOMIC_ACQUIRE);
	for (uint64_t now = 1; now > 0 && now != UINT64_MAX; most = MAX(most, now))
		now = running(*sock);
	if (!reap_fills(&r[0]) || !reap_fills(&r[1]) || !slots_good(&r[0]) || !slots_good(&r[1]))
		return UINT64_MAX;
	return most;
}

/* At least so many rounds, and until `enough` was seen. */
static uint64_t most_of(int *sock, uint32_t *pid, struct ring r[2], uint32_t kills, uint64_t enough)
{
	uint64_t most = 0;

	for (uint32_t i = 0; (i < kills || most < enough) && i < KILLS_MAX && most != UINT64_MAX; i++) {
		const uint64_t round = killed_round(sock, pid, r);

		most = MAX(most, round);
	}
	return most;
}

/* Two sessions with the fills of a daemon that lives, for what they bring. */
static void open_two(struct ring r[2], uint64_t first, uint64_t second)
{
	struct moe_msg_attach a[2] = {on_device(first), on_device(second)};

	for (int i = 0; i < 2; i++) {
		a[i].entries = ENTRIES;
		ring_open_as(&r[i], a[i]);
		post_fills(&r[i], SLOTS);
		require(reap_fills(&r[i]), "fills before any kill");
	}
	if (!content) {
		content = malloc(SLOTS * RECORD);
		require(content != NULL, "room for the slots");
		memcpy(content, r[0].slots, SLOTS * RECORD);
	}
	ok(slots_good(&r[0]) && slots_good(&r[1]), "both sessions' slots have the same");
}

/* -- what is left -------------------------------------------------------------------------------------------------- */

/* Open descriptors but for documents: one is closed only when its answer has been sent. */
static int count_fds_of(pid_t pid)
{
	char folder[64], path[PATH_MAX], target[PATH_MAX];
	struct dirent *entry;
	DIR *dir;
	int n = 0;

	snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
	dir = opendir(folder);
	if (!dir)
		return -1;
	while ((entry = readdir(dir))) {
		ssize_t length;

		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		length = readlink(path, target, sizeof target - 1);
		target[MAX(length, 0)] = '\0';
		n += length > 0 && !strstr(target, "moe-document");
	}
	closedir(dir);
	return n;
}

/* Of daemon and keeper; connections that have ended are closed between one answer and the next. */
static void count_fds(int sock, uint32_t pid, int ret[2])
{
	for (int i = 0; i < 20; i++)
		running(sock);
	ret[0] = count_fds_of((pid_t)pid);
	ret[1] = count_fds_of(fixture.pid);
}

/* The keeper hears of what it may close when it comes to that. */
static bool comes_back(int sock, uint32_t pid, const int before[2], int ret[2])
{
	const time_t end = time(NULL) + FILL_PATIENCE_S;

	do
		count_fds(sock, pid, ret);
	while ((ret[0] != before[0] || ret[1] != before[1]) && time(NULL) < end);
	return ret[0] == before[0] && ret[1] == before[1];
}

int main(void)
{
	static const char *const options[] = {"--keep", "--threads", "1", "--fill-budget", "1", NULL};
	struct ring two[2], shared[2];
	int sock, before[2], after[2];
	uint32_t pid = 0;
	uint64_t most;
	bool back;

	/* What this test was given is not the daemon's: kept descriptors would take its place, and the count change. */
	close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
	setenv("MOE_CRASH_PLAN", "/dev/null", 1); /* the keeper counts no kill */
	fixture_start(&fixture, fixture_sample(), options);
	sock = meet(0, &pid);
	kill_daemon(&sock, &pid);
	count_fds(sock, pid, before);
	open_two(two, 5, 6);
	most = most_of(&sock, &pid, two, 1, 2 * RECORD);
	ok(most == 2 * RECORD, "two devices: the next daemon has %llu bytes at a time", (unsigned long long)most);
	open_two(shared, 7, 7);
	most = most_of(&sock, &pid, shared, KILLS, RECORD);
	ok(most == RECORD, "one device: the next daemon has %llu bytes at a time", (unsigned long long)most);
	ok(again > 0, "%llu fills were run again", (unsigned long long)again);
	ring_close(&shared[0]);
	kill_daemon(&sock, &pid);
	post_fills(&shared[1], ENTRIES);
	ok(reap_fills(&shared[1]) && slots_good(&shared[1]), "when one has gone and a daemon too, the other goes on");
	ring_close(&shared[1]);
	ring_close(&two[0]);
	ring_close(&two[1]);
	kill_daemon(&sock, &pid);
	back = comes_back(sock, pid, before, after);
	ok(back, "descriptors of the daemon and its keeper: %d and %d before, %d and %d after", before[0], before[1],
	   after[0], after[1]);
	ok(asked("status", "sessions") == 0, "no session is left");
	ok(asked("status", "weight_bytes_read") == 0, "no weight was read again");
	close(sock);
	free(content);
	ok(fixture_stop(&fixture) == 0, "the daemon ends with 0");
	return tap_done();
}
