/* SPDX-License-Identifier: MIT */
/* Tracepoints: each transition is seen in tracefs, with the ids that the commands told. */
#include "tests/kmod/queues.h"

#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define TRACING "/tracing/"

static bool set(const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof path, TRACING "%s", name);
	return write_file(path, value);
}

/* Whether a line has both, and such lines are `times`. */
static bool traced(const char *text, const char *event, const char *fields, int times)
{
	char line[512];
	int seen = 0;

	for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
		snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
		seen += strstr(line, event) && strstr(line, fields);
	}
	if (seen != times)
		diag("%s%s: %d times", event, fields, seen);
	return seen == times;
}

static const char *what_was_traced(void)
{
	static char text[1 << 16];
	int fd = open(TRACING "trace", O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t r;

	while ((r = read(fd, text + n, sizeof text - 1 - n)) > 0)
		n += (size_t)r;
	text[n] = '\0';
	close(fd);
	return text;
}

struct made {
	unsigned long long pool, dropped, ended, sealed;
};

/* One of each. */
static struct made do_everything(void)
{
	int dev = device_open(), fd = pool_file(1, 1, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	struct moe_kmod_adopt a = adopt_of(fd, 1, 7, "traced");
	struct moe_kmod_lease whole;
	struct moe_kmod_take t;
	struct moe_kmod_map m;
	struct moe_kmod_dmabuf d;
	struct made made;

	a.flags = MOE_KMOD_POOL_MAP | MOE_KMOD_POOL_DMABUF;
	ioctl(dev, MOE_KMOD_ADOPT, &a);
	made.pool = a.id;
	t = (struct moe_kmod_take){.id = a.id};
	ioctl(dev, MOE_KMOD_TAKE, &t);
	close(t.fd);
	ioctl(dev, MOE_KMOD_EPOCH, &(struct moe_kmod_epoch){.id = a.id, .epoch = 8});
	made.dropped = lease_new(dev, a.id, 8);
	ioctl(dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = made.dropped});
	lease_new(dev, a.id, 7);
	whole = lease_of(a.id, 8, 0, HUGE_BYTES);
	ioctl(dev, MOE_KMOD_LEASE, &whole);
	made.sealed = whole.id;
	d = (struct moe_kmod_dmabuf){.lease = whole.id};
	ioctl(dev, MOE_KMOD_DMABUF, &d);
	close(d.fd);
	m = (struct moe_kmod_map){.lease = whole.id};
	ioctl(dev, MOE_KMOD_MAP, &m);
	mprotect((void *)(uintptr_t)m.address, HUGE_BYTES, PROT_READ);
	ioctl(dev, MOE_KMOD_SEAL, &(struct moe_kmod_seal){.lease = whole.id});
	munmap((void *)(uintptr_t)m.address, HUGE_BYTES);
	made.ended = lease_new(dev, a.id, 8);
	pool_release(dev, a.id);
	close(dev);
	close(fd);
	return made;
}

/* A request of each transition; the queue's id. */
static uint32_t ask_everything(void)
{
	int daemon = device_open(), client = device_open();
	const uint32_t q = queue_new(daemon, 2, 0);
	struct moe_kmod_fetched f;
	uint32_t again;

	submit(client, q, 1);
	fetch(daemon, q, 0, &f);
	close(daemon);
	daemon = device_open();
	queue_recover(daemon, q, &again);
	fetch(daemon, q, 1, &f);
	commit(daemon, q, 1, f.seq, -EIO);
	submit(client, q, 2);
	close(client);
	queue_end(daemon, q);
	close(daemon);
	return q;
}

static void check_requests(const char *text, uint32_t queue)
{
	static const char *const events[] = {"submit", "fetch", "park", "reissue", "commit", "drop"};
	static const int times[] = {2, 1, 1, 1, 1, 2};
	char name[64], fields[32];

	snprintf(fields, sizeof fields, " queue=%u ", queue);
	for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
		snprintf(name, sizeof name, "moe_request_%s: ", events[i]);
		ok(traced(text, name, fields, times[i]), "requests: %s is seen", events[i]);
	}
}

static void check(const char *text, struct made made)
{
	char pool[64], lease[64], pid[32];

	snprintf(pid, sizeof pid, ": pid=%d ", getpid());
	ok(traced(text, "moe_open", pid, 4) && traced(text, "moe_close", pid, 4), "the device is opened and closed");
	snprintf(pool, sizeof pool, ": pool=%llu epoch=7 bytes=2097152 leases=0 name=traced", made.pool);
	ok(traced(text, "moe_adopt", pool, 1), "a pool is adopted");
	ok(traced(text, "moe_take", pool, 1), "and taken back");
	snprintf(pool, sizeof pool, ": pool=%llu epoch=8 ", made.pool);
	ok(traced(text, "moe_epoch", pool, 1), "its epoch changes");
	ok(traced(text, "moe_release", pool, 1) && traced(text, "moe_gone", pool, 1), "it is released, and goes");
	snprintf(lease, sizeof lease, ": lease=%llu pool=%llu epoch=8 offset=0 bytes=4096 ", made.dropped, made.pool);
	ok(traced(text, "moe_lease", lease, 1) && traced(text, "moe_drop", lease, 1), "a lease is taken and dropped");
	snprintf(lease, sizeof lease, ": lease=%llu pool=%llu epoch=8 ", made.sealed, made.pool);
	ok(traced(text, "moe_map", lease, 1) && traced(text, "moe_seal", lease, 1), "one is mapped and sealed");
	ok(traced(text, "moe_export", lease, 1), "it is made a dma-buf");
	ok(traced(text, "moe_end", lease, 1) && traced(text, "moe_end", "state=3", 1), "and ends with the device");
	snprintf(lease, sizeof lease, ": lease=%llu pool=%llu epoch=8 ", made.ended, made.pool);
	ok(traced(text, "moe_end", lease, 1) && traced(text, "moe_drop", lease, 0), "as one does that was not dropped");
	ok(traced(text, "moe_refused", "command=6 error=-116", 1), "one of a stale epoch is refused");
}

void test_traces(void)
{
	struct made made;
	uint32_t queue;

	mkdir(TRACING, 0700);
	require(mount("none", TRACING, "tracefs", 0, NULL) == 0, "there is a tracefs");
	ok(set("events/moe_expert/enable", "1") && set("trace", ""), "the module's tracepoints are there");
	made = do_everything();
	queue = ask_everything();
	check_requests(what_was_traced(), queue);
	check(what_was_traced(), made);
	ok(set("events/moe_expert/enable", "0") && set("trace", ""), "they are switched off");
	umount(TRACING);
}
