/* SPDX-License-Identifier: MIT */
/*
 * Random commands of random sizes with random structs, as ioctls and by rings, from several threads at once, as root
 * and as somebody.
 */
#include "tests/kmod/rings.h"

#include <pthread.h>
#include <sys/stat.h>

#define THREADS 3

struct fuzzer {
	unsigned long long seed;
	unsigned count;
	int dev, pool_file;
	uint64_t lease;                  /* the last one that it got */
	struct moe_kmod_fetched fetched; /* the last one that it was told of */
	struct moe_kmod_answer answer;
	struct io_uring ring;
	bool has_ring;
};

/* Of a queue that there is: one that is made has a name, requests are well formed, tags exist. */
static void fill_queue(struct fuzzer *f, uint64_t *words, unsigned nr)
{
	struct moe_kmod_queue q = {0};
	const struct moe_kmod_queue_new n = {
		.depth = 4, .recover_ms = (uint32_t)(tap_random(&f->seed) >> 60), .name = "fuzzed"};
	const struct moe_kmod_request r = {.lease = tap_random(&f->seed) >> 63 ? f->lease : 0};
	const struct moe_kmod_tag t = {.tag = (uint32_t)(tap_random(&f->seed) >> 62),
				       .to = nr == _IOC_NR(MOE_KMOD_COMMIT) ? 0 : (uintptr_t)&f->fetched,
				       .seq = nr == _IOC_NR(MOE_KMOD_FETCH) ? 0 : f->fetched.seq};

	ioctl(f->dev, MOE_KMOD_QUEUE, &q);
	memset(words, 0, 128);
	if (nr == _IOC_NR(MOE_KMOD_QUEUE_NEW))
		memcpy(words, &n, sizeof n);
	else if (nr == _IOC_NR(MOE_KMOD_SUBMIT))
		memcpy(words, &r, sizeof r);
	else if (nr == _IOC_NR(MOE_KMOD_FETCH) || nr == _IOC_NR(MOE_KMOD_COMMIT) ||
		 nr == _IOC_NR(MOE_KMOD_COMMIT_AND_FETCH))
		memcpy(words, &t, sizeof t);
	if (nr != _IOC_NR(MOE_KMOD_QUEUE_NEW) && nr != _IOC_NR(MOE_KMOD_REAP))
		memcpy(words, &q.id, sizeof q.id);
}

/* Mostly what is nearly right: a command that exists, ids and epochs that may, sizes that fit. */
static void fill(struct fuzzer *f, uint64_t *words, size_t n, unsigned nr)
{
	for (size_t i = 0; i < n; i++) {
		unsigned long long kind = tap_random(&f->seed) >> 61;

		words[i] = kind < 4 ? 0 : kind < 7 ? tap_random(&f->seed) >> 60 : tap_random(&f->seed);
	}
	if (nr == _IOC_NR(MOE_KMOD_ADOPT) && tap_random(&f->seed) >> 63) {
		struct moe_kmod_adopt a = adopt_of(f->pool_file, 1, 1, "fuzzed");

		a.flags = (uint32_t)(tap_random(&f->seed) >> 62);
		memcpy(words, &a, sizeof a);
	} else if (nr == _IOC_NR(MOE_KMOD_LEASE) && tap_random(&f->seed) >> 63) {
		struct moe_kmod_pool p = {0};
		struct moe_kmod_lease l;

		ioctl(f->dev, MOE_KMOD_POOL, &p);
		l = lease_of(p.id, p.epoch, 0, tap_random(&f->seed) >> 63 ? 4096 : HUGE_BYTES);
		l.flags = (uint32_t)(tap_random(&f->seed) >> 63);
		memcpy(words, &l, sizeof l);
	} else if (nr >= _IOC_NR(MOE_KMOD_QUEUE_NEW) && tap_random(&f->seed) >> 62) {
		fill_queue(f, words, nr);
	} else if (nr >= _IOC_NR(MOE_KMOD_MAP) && tap_random(&f->seed) >> 63) {
		memset(words, 0, 4 * sizeof *words);
		words[0] = f->lease;
	}
}

/* What a command gave is given back, or a process has soon all the descriptors and memory that it may have. */
static void give_back(struct fuzzer *f, unsigned nr, const void *answer)
{
	const struct moe_kmod_lease *l = answer;
	const struct moe_kmod_map *m = answer;

	if (nr == _IOC_NR(MOE_KMOD_LEASE))
		f->lease = l->id;
	if (nr == _IOC_NR(MOE_KMOD_LEASE) && l->flags)
		close(l->fd);
	if (nr == _IOC_NR(MOE_KMOD_TAKE))
		close(((const struct moe_kmod_take *)answer)->fd);
	if (nr == _IOC_NR(MOE_KMOD_DMABUF))
		close(((const struct moe_kmod_dmabuf *)answer)->fd);
	if (nr != _IOC_NR(MOE_KMOD_MAP))
		return;
	mprotect((void *)(uintptr_t)m->address, m->bytes, PROT_READ);
	ioctl(f->dev, MOE_KMOD_SEAL, &(struct moe_kmod_seal){.lease = m->lease});
	munmap((void *)(uintptr_t)m->address, m->bytes);
}

/* -- by ring ------------------------------------------------------------------------------------------------------ */

static void ring_begin(struct fuzzer *f)
{
	f->has_ring = rings_there(f->dev) && ring_new(&f->ring, 0);
}

static void ring_finish(struct fuzzer *f)
{
	if (f->has_ring)
		io_uring_queue_exit(&f->ring);
	f->has_ring = false;
}

/* One command, mostly of the four that rings know; what was completed meanwhile is taken. */
static void fuzz_ring(struct fuzzer *f, uint64_t *words, size_t n)
{
	static const unsigned known[] = {MOE_KMOD_FETCH, MOE_KMOD_COMMIT, MOE_KMOD_COMMIT_AND_FETCH, MOE_KMOD_SUBMIT};
	const unsigned long long r = tap_random(&f->seed);
	const unsigned op = r >> 60 == 0 ? (unsigned)(r >> 8) : known[(r >> 8) % 4];
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;

	fill(f, words, n, _IOC_NR(op));
	sqe = ring_prepare(&f->ring, f->dev, op, words, r);
	sqe->addr = (r >> 20) % 4 == 0 ? words[0] : op == MOE_KMOD_SUBMIT ? (uintptr_t)&f->answer : 0;
	sqe->len = (r >> 22) % 64 == 0;
	sqe->uring_cmd_flags = (r >> 28) % 64 == 0 ? (unsigned)(r >> 32) : 0;
	sqe->flags = (r >> 34) % 32 == 0 ? IOSQE_ASYNC : (r >> 34) % 32 == 1 ? IOSQE_IO_LINK : 0;
	io_uring_submit(&f->ring);
	while (io_uring_peek_cqe(&f->ring, &cqe) == 0)
		io_uring_cqe_seen(&f->ring, cqe);
	/* Now and then it ends, with what waits in it. */
	if ((r >> 40) % 256 == 0) {
		ring_finish(f);
		ring_begin(f);
	}
}

/* -- threads ------------------------------------------------------------------------------------------------------ */

static void *fuzz(void *arg)
{
	struct fuzzer *f = arg;
	uint64_t words[64];

	ring_begin(f);
	for (unsigned i = 0; i < f->count; i++) {
		const unsigned long long r = tap_random(&f->seed);
		const unsigned nr = r >> 60 == 0 ? r >> 8 & 0xff : (r >> 8) % COMMANDS;
		static const unsigned right[COMMANDS] = {32, 112, 120, 24, 16, 16, 48, 16, 56, 8,  32,
							 16, 16,  80,  96, 16, 8,  80, 80, 80, 80, 64};
		const unsigned bytes = nr < COMMANDS && r >> 59 & 1 ? right[nr] : (r >> 16) % (sizeof words + 1);

		if ((r >> 40) % 64 == 0) {
			close(f->dev);
			f->dev = device_open_flags(O_RDWR | O_NONBLOCK);
		} else if ((r >> 40) % 16 == 1) {
			(void)!read(f->dev, words, bytes);
		} else if (f->has_ring && (r >> 40) % 4 == 2) {
			fuzz_ring(f, words, sizeof words / sizeof *words);
		} else {
			fill(f, words, sizeof words / sizeof *words, nr);
			if (ioctl(f->dev, _IOC(_IOC_READ | _IOC_WRITE, MOE_KMOD_IOC, nr, bytes), words) == 0)
				give_back(f, nr, words);
		}
	}
	ring_finish(f);
	close(f->dev);
	return NULL;
}

/* In a process of its own, whose descriptors go with it, however many it was given. */
static void fuzz_process(void *arg)
{
	struct fuzzer f = *(struct fuzzer *)arg;
	struct fuzzer fs[THREADS];
	pthread_t threads[THREADS];

	f.pool_file = pool_file(1, 1, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	for (int i = 0; i < THREADS; i++) {
		fs[i] = f;
		fs[i].seed += (unsigned long long)i + 1;
		fs[i].dev = device_open_flags(O_RDWR | O_NONBLOCK);
		pthread_create(&threads[i], NULL, fuzz, &fs[i]);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void fuzz_as_somebody(void *arg)
{
	if (setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
		_exit(2);
	fuzz_process(arg);
}

static void release_all(void)
{
	int dev = device_open();
	struct moe_kmod_pool p = {0};
	struct moe_kmod_queue q = {0};

	while (ioctl(dev, MOE_KMOD_POOL, &p) == 0)
		pool_release(dev, p.id);
	while (ioctl(dev, MOE_KMOD_QUEUE, &q) == 0)
		ioctl(dev, MOE_KMOD_QUEUE_END, &(struct moe_kmod_queue_end){.id = q.id});
	close(dev);
}

void test_hostile(unsigned long long *seed)
{
	const char *asked = getenv("TEST_COMMANDS");
	struct fuzzer f = {.count = asked ? (unsigned)atoi(asked) / (2 * THREADS) : 10000};
	struct child root, somebody;
	const int64_t leased = counter("leased"), adopted = counter("adopted");
	const int64_t submitted = counter("submitted"), answered = counter("answered");
	int status;

	chmod(MOE_KMOD_DEVICE, 0666);
	f.seed = tap_random(seed);
	root = child_start(fuzz_process, &f);
	f.seed = tap_random(seed);
	somebody = child_start(fuzz_as_somebody, &f);
	status = child_end(&root, 0);
	ok(status == 0 && child_end(&somebody, 0) == 0, "%u random commands: nobody hangs or dies",
	   2 * THREADS * f.count);
	release_all();
	/* Fewer commands may by chance be none that is right. */
	ok(f.count < 1000 || (counter("leased") > leased && counter("adopted") > adopted),
	   "%lld pools and %lld leases came of it", (long long)(counter("adopted") - adopted),
	   (long long)(counter("leased") - leased));
	diag("%lld requests were submitted, %lld answered", (long long)(counter("submitted") - submitted),
	     (long long)(counter("answered") - answered));
}
