/* SPDX-License-Identifier: MIT */
/*
 * Each allocation of each command, and each copy from and to the caller, fails once (/proc/self/fail-nth): a call that
 * is refused leaves nothing, and one that falls back leaves what a good one does.
 *
 * A new command gets a row of ways[], one of queues of queue_ways[].
 */
#include "tests/kmod/fails.h"
#include "tests/kmod/importer/importer.h"

#include <poll.h>
#include <stdio.h>

#define PAGES 2u
#define BYTES (PAGES * HUGE_BYTES)
#define BLOB FAILS_BLOB
#define MOST 2000 /* allocations of one call: far more than there are */
#define DESCRIPTORS 64

/* -- what there is ------------------------------------------------------------------------------------------------ */

struct traces {
	int64_t counters[8], huge;
	int descriptors, mappings;
	struct moe_kmod_pool pool;
};

static const char *const names[] = {"clients", "pools", "pages", "leases", "events", "exports", "queues", "requests"};

static int mappings(void)
{
	static char text[1 << 15];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), lines = 0;
	ssize_t r;

	while ((r = read(fd, text, sizeof text)) > 0)
		for (ssize_t i = 0; i < r; i++)
			lines += text[i] == '\n';
	close(fd);
	return lines;
}

static struct traces look(const struct scene *s)
{
	struct traces t;

	memset(&t, 0, sizeof t);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		t.counters[i] = counter(names[i]);
	t.huge = huge_free();
	for (int fd = 0; fd < DESCRIPTORS; fd++)
		t.descriptors += fcntl(fd, F_GETFD) >= 0;
	t.mappings = mappings();
	t.pool.id = s->pool - 1;
	ioctl(s->dev, MOE_KMOD_POOL, &t.pool);
	t.pool.epoch = 0; /* what EPOCH does is not taken back */
	return t;
}

/* Soon, for a file that nobody has any more goes a moment later. */
static bool is_as(const struct scene *s, const struct traces *before, const char *when)
{
	struct traces now;

	for (int i = 0; i < 1000; i++) {
		now = look(s);
		if (memcmp(&now, before, sizeof now) == 0)
			return true;
		usleep(1000);
	}
	diag("%s: %d descriptors of %d, %d mappings of %d, %lld huge pages of %lld", when, now.descriptors,
	     before->descriptors, now.mappings, before->mappings, (long long)now.huge, (long long)before->huge);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		diag("  %s %lld of %lld", names[i], (long long)now.counters[i], (long long)before->counters[i]);
	return false;
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

static bool features(struct scene *s)
{
	return ioctl(s->dev, MOE_KMOD_FEATURES, &(struct moe_kmod_features){0}) == 0;
}

static bool adopt(struct scene *s)
{
	struct moe_kmod_adopt a = adopt_of(s->file, PAGES, 1, "second");

	a.blob = (uintptr_t)s->blob;
	a.blob_bytes = BLOB;
	s->second = ioctl(s->dev, MOE_KMOD_ADOPT, &a) == 0 ? a.id : 0;
	return s->second;
}

static void adopt_first(struct scene *s)
{
	adopt(s);
}

static bool release(struct scene *s)
{
	return pool_release(s->dev, s->second) == 0;
}

static void release_if_done(struct scene *s, bool done)
{
	if (done)
		release(s);
}

static void release_if_not(struct scene *s, bool done)
{
	if (!done)
		release(s);
}

static bool next_pool(struct scene *s)
{
	return ioctl(s->dev, MOE_KMOD_POOL, &(struct moe_kmod_pool){0}) == 0;
}

static bool take_pool(struct scene *s)
{
	struct moe_kmod_take t = {.id = s->pool, .blob = (uintptr_t)s->blob, .blob_bytes = BLOB};

	s->fd = ioctl(s->dev, MOE_KMOD_TAKE, &t) == 0 ? t.fd : -1;
	return s->fd >= 0;
}

static void close_fd(struct scene *s, bool done)
{
	if (done)
		close(s->fd);
}

static bool next_epoch(struct scene *s)
{
	return ioctl(s->dev, MOE_KMOD_EPOCH, &(struct moe_kmod_epoch){.id = s->pool, .epoch = s->epoch + 1}) == 0;
}

static void count_epoch(struct scene *s, bool done)
{
	s->epoch += done;
}

static bool lease_with(struct scene *s, uint32_t flags)
{
	struct moe_kmod_lease l = lease_of(s->pool, s->epoch, 0, BYTES);

	l.flags = flags;
	s->lease = ioctl(s->dev, MOE_KMOD_LEASE, &l) == 0 ? l.id : 0;
	s->fd = l.fd;
	return s->lease;
}

static bool lease(struct scene *s)
{
	return lease_with(s, 0);
}

static bool lease_and_fd(struct scene *s)
{
	return lease_with(s, MOE_KMOD_LEASE_FD);
}

static void lease_first(struct scene *s)
{
	lease(s);
}

static bool drop(struct scene *s)
{
	return ioctl(s->dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = s->lease}) == 0;
}

static void drop_lease(struct scene *s, bool done)
{
	(void)done;
	drop(s);
}

static void drop_if_done(struct scene *s, bool done)
{
	if (done)
		drop(s);
}

static void drop_if_not(struct scene *s, bool done)
{
	if (!done)
		drop(s);
}

static void drop_and_close(struct scene *s, bool done)
{
	drop_if_done(s, done);
	close_fd(s, done);
}

static bool next_lease(struct scene *s)
{
	return ioctl(s->dev, MOE_KMOD_LEASES, &(struct moe_kmod_leases){0}) == 0;
}

static bool map(struct scene *s)
{
	struct moe_kmod_map m = {.lease = s->lease};
	bool done = ioctl(s->dev, MOE_KMOD_MAP, &m) == 0;

	s->at = done ? (char *)(uintptr_t)m.address : MAP_FAILED;
	return done;
}

static void unmap(struct scene *s, bool done)
{
	if (done)
		munmap(s->at, BYTES);
	drop(s);
}

static void map_first(struct scene *s)
{
	lease(s);
	map(s);
	mprotect(s->at, BYTES, PROT_READ);
}

static bool seal(struct scene *s)
{
	return ioctl(s->dev, MOE_KMOD_SEAL, &(struct moe_kmod_seal){.lease = s->lease}) == 0;
}

static void unmap_always(struct scene *s, bool done)
{
	(void)done;
	unmap(s, true);
}

/* -- dma-bufs ----------------------------------------------------------------------------------------------------- */

static bool export(struct scene *s)
{
	struct moe_kmod_dmabuf d = {.lease = s->lease};

	s->fd = ioctl(s->dev, MOE_KMOD_DMABUF, &d) == 0 ? d.fd : -1;
	return s->fd >= 0;
}

static void export_first(struct scene *s)
{
	lease(s);
	export(s);
}

static void close_and_drop(struct scene *s, bool done)
{
	close_fd(s, done);
	drop(s);
}

static bool import(struct scene *s)
{
	return ioctl(s->importer, MOE_IMPORT, &(struct moe_import){.fd = s->fd, .direction = 1}) == 0;
}

static void let_go(struct scene *s, bool done)
{
	(void)done;
	ioctl(s->importer, MOE_LET_GO);
	close_and_drop(s, true);
}

static bool map_export(struct scene *s)
{
	s->at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, s->fd, 0);
	return s->at != MAP_FAILED;
}

static void unmap_export(struct scene *s, bool done)
{
	if (done)
		munmap(s->at, BYTES);
	close_and_drop(s, true);
}

/* -- the device --------------------------------------------------------------------------------------------------- */

static bool open_device(struct scene *s)
{
	s->other = open(MOE_KMOD_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	return s->other >= 0;
}

static void open_first(struct scene *s)
{
	open_device(s);
}

static void close_device(struct scene *s, bool done)
{
	if (done)
		close(s->other);
}

static void close_always(struct scene *s, bool done)
{
	(void)done;
	close(s->other);
}

static bool watch(struct scene *s)
{
	return ioctl(s->other, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0;
}

/* A watcher, and a lease that ended without DROP. */
static void event_first(struct scene *s)
{
	int dev = device_open();

	open_device(s);
	watch(s);
	lease_new(dev, s->pool, s->epoch);
	close(dev);
}

static bool read_event(struct scene *s)
{
	struct moe_kmod_event e;

	return read(s->other, &e, sizeof e) == sizeof e;
}

static bool poll_events(struct scene *s)
{
	struct pollfd p = {.fd = s->other, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static const struct way ways[] = {
	{"open", 1, NULL, open_device, close_device},
	{"FEATURES", 0, NULL, features, NULL},
	{"ADOPT", 4, NULL, adopt, release_if_done},
	{"POOL", 0, NULL, next_pool, NULL},
	{"TAKE", 0, NULL, take_pool, close_fd},
	{"EPOCH", 0, NULL, next_epoch, count_epoch},
	{"RELEASE", 0, adopt_first, release, release_if_not},
	{"LEASE", 1, NULL, lease, drop_if_done},
	{"LEASE with a descriptor", 2, NULL, lease_and_fd, drop_and_close},
	{"DROP", 0, lease_first, drop, drop_if_not},
	{"LEASES", 0, lease_first, next_lease, drop_lease},
	{"WATCH", 0, open_first, watch, close_always},
	{"read", 0, event_first, read_event, close_always, .takes = true},
	{"poll", 0, event_first, poll_events, close_always},
	{"MAP", 2, lease_first, map, unmap},
	{"SEAL", 0, map_first, seal, unmap_always},
	{"DMABUF", 3, lease_first, export, close_and_drop},
	{"mmap of a dma-buf", 1, export_first, map_export, unmap_export},
	{"an importer", 3, export_first, import, let_go},
};

/* -- failures ----------------------------------------------------------------------------------------------------- */

static bool set(const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof path, DEBUGGING "%s", name);
	return write_file(path, value);
}

/* Those that may sleep, too, and of pages of any size; none is told to the log, which would look like a fault. */
static bool set_failures(void)
{
	bool good = set("failslab/ignore-gfp-wait", "N") && set("failslab/verbose", "0") &&
		    set("fail_page_alloc/ignore-gfp-wait", "N") && set("fail_page_alloc/min-order", "0") &&
		    set("fail_page_alloc/verbose", "0");

	set("fail_usercopy/verbose", "0");
	return good;
}

static void fail_at(int nth, unsigned n)
{
	char text[16];
	const int length = snprintf(text, sizeof text, "%u", n);

	/* Switching it off is a copy from the caller, which may be the one that fails. */
	while (pwrite(nth, text, (size_t)length, 0) != length)
		continue;
}

/* Whether the failure came; the look at it is a copy that may be the one to fail, then it had not. */
static bool has_failed(int nth)
{
	char text[16] = "";

	return pread(nth, text, sizeof text - 1, 0) > 0 && atoi(text) == 0;
}

static void fail_all(struct scene *s, const struct way *w, int nth)
{
	const struct traces before = look(s);
	int failed = 0, refused = 0;
	bool clean = true, done = false, hit = true;

	for (int n = 0; hit && clean && n < MOST; n++) {
		struct traces made;

		if (w->before)
			w->before(s);
		made = look(s);
		/* Once without, for what the first call of all brings into memory. */
		if (n > 0)
			fail_at(nth, (unsigned)n);
		done = w->call(s);
		if (n > 0) {
			hit = has_failed(nth);
			fail_at(nth, 0);
			failed += hit;
			refused += hit && !done;
		}
		if (!done && !w->takes)
			clean = is_as(s, &made, w->name);
		if (w->after)
			w->after(s, done);
		clean = clean && is_as(s, &before, w->name);
	}
	ok(clean && done && !hit && failed >= w->least, "%s: %d failures, %d times refused, nothing is left", w->name,
	   failed, refused);
}

static void test_ways(int nth)
{
	struct scene s = {.dev = device_open(), .file = pool_file(PAGES, 8, -1, ALL_SEALS), .epoch = 1};
	int first = pool_file(PAGES, 7, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	struct moe_kmod_adopt a = adopt_of(first, PAGES, 1, "first");

	require(module_load_file("/moe_importer.ko") == 0, "the importer loads");
	s.importer = open("/dev/moe-importer", O_RDWR | O_CLOEXEC);
	a.flags = MOE_KMOD_POOL_MAP | MOE_KMOD_POOL_DMABUF;
	a.blob = (uintptr_t)s.blob;
	a.blob_bytes = BLOB;
	require(ioctl(s.dev, MOE_KMOD_ADOPT, &a) == 0, "a pool that may be mapped and exported");
	s.pool = a.id;
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		fail_all(&s, &ways[i], nth);
	for (size_t i = 0; i < n_queue_ways; i++)
		if (!queue_ways[i].ring || rings_there(s.dev))
			fail_all(&s, &queue_ways[i], nth);
	pool_release(s.dev, s.pool);
	close(first);
	close(s.file);
	close(s.importer);
	close(s.dev);
	ok(syscall(SYS_delete_module, "moe_importer", O_NONBLOCK) == 0, "the importer is unloaded");
}

void test_fails(void)
{
	int nth = open("/proc/self/fail-nth", O_RDWR | O_CLOEXEC);

	if (nth < 0) {
		tap_skip("this kernel fails no allocation on request: no /proc/self/fail-nth (make check-kmod-debug)");
		return;
	}
	require(set_failures(), "debugfs says what is to fail");
	test_ways(nth);
	close(nth);
}
