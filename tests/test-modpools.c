/* SPDX-License-Identifier: MIT */
/* test-modpools - models that lie with the kernel module: a device of this test stands for it, and refuses. */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/load.h"
#include "daemon/modpools.h"
#include "tests/tap.h"
#include "uapi/moe_kmod.h"

#define POOLS 8

#define is_int(found, expected, ...)                                                                                   \
	do {                                                                                                           \
		const int64_t found_ = (found), expected_ = (expected);                                                \
		if (!ok(found_ == expected_, __VA_ARGS__))                                                             \
			diag("found %lld, expected %lld", (long long)found_, (long long)expected_);                    \
	} while (0)
#define die(...)                                                                                                       \
	do {                                                                                                           \
		ok(false, __VA_ARGS__);                                                                                \
		exit(tap_done());                                                                                      \
	} while (0)

static struct fake {
	int open_errno, fail_errno; /* 0: none */
	unsigned long fails;        /* the command that fails */
	uint32_t spared;            /* so many of it succeed before */
	bool slow;                  /* ADOPT: says that it is there, and waits */
	sem_t adopting, go_on;
	struct moe_kmod_features features;
	struct {
		uint64_t id, epoch, bytes;
		int fd;
		uint32_t blob_bytes, owner;
		uint8_t *blob;
		char name[MOE_KMOD_NAME];
	} pools[POOLS];
	uint64_t last;
} fake;

static int fake_open(const char *path, int flags)
{
	if (fake.open_errno) {
		errno = fake.open_errno;
		return -1;
	}
	return open("/dev/null", flags);
}

static int adopt(struct moe_kmod_adopt *a)
{
	uint32_t i = 0;

	if (fake.slow) {
		sem_post(&fake.adopting);
		sem_wait(&fake.go_on);
	}
	while (fake.pools[i].id)
		i++;
	fake.pools[i].id = a->id = ++fake.last;
	fake.pools[i].epoch = a->epoch;
	fake.pools[i].bytes = a->bytes;
	fake.pools[i].owner = geteuid();
	fake.pools[i].fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
	fake.pools[i].blob_bytes = a->blob_bytes;
	fake.pools[i].blob = malloc(a->blob_bytes);
	memcpy(fake.pools[i].blob, (const void *)(uintptr_t)a->blob, a->blob_bytes);
	memcpy(fake.pools[i].name, a->name, sizeof a->name);
	return 0;
}

static int next(struct moe_kmod_pool *p)
{
	uint32_t best = POOLS;

	for (uint32_t i = 0; i < POOLS; i++)
		if (fake.pools[i].id > p->id && (best == POOLS || fake.pools[i].id < fake.pools[best].id))
			best = i;
	if (best == POOLS) {
		errno = ENOENT;
		return -1;
	}
	*p = (struct moe_kmod_pool){.id = fake.pools[best].id,
				    .epoch = fake.pools[best].epoch,
				    .bytes = fake.pools[best].bytes,
				    .blob_bytes = fake.pools[best].blob_bytes,
				    .owner = fake.pools[best].owner};
	memcpy(p->name, fake.pools[best].name, sizeof p->name);
	return 0;
}

static int take(struct moe_kmod_take *t)
{
	uint32_t i = 0;

	while (fake.pools[i].id != t->id)
		i++;
	memcpy((void *)(uintptr_t)t->blob, fake.pools[i].blob, fake.pools[i].blob_bytes);
	t->fd = fcntl(fake.pools[i].fd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

static int let_go(const struct moe_kmod_release *r)
{
	for (uint32_t i = 0; i < POOLS; i++)
		if (fake.pools[i].id == r->id) {
			close(fake.pools[i].fd);
			free(fake.pools[i].blob);
			memset(&fake.pools[i], 0, sizeof fake.pools[i]);
			return 0;
		}
	errno = ENOENT;
	return -1;
}

static int fake_command(int fd, unsigned long command, void *arg)
{
	if (fake.fail_errno && command == fake.fails && fake.spared-- == 0) {
		fake.spared = 0;
		errno = fake.fail_errno;
		return -1;
	}
	switch (command) {
	case MOE_KMOD_FEATURES:
		*(struct moe_kmod_features *)arg = fake.features;
		return 0;
	case MOE_KMOD_WATCH:
		return 0;
	case MOE_KMOD_ADOPT:
		return adopt(arg);
	case MOE_KMOD_POOL:
		return next(arg);
	case MOE_KMOD_TAKE:
		return take(arg);
	case MOE_KMOD_RELEASE:
		return let_go(arg);
	}
	errno = ENOTTY;
	return -1;
}

static const struct modpools_ops ops = {fake_open, fake_command};

static uint32_t there(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < POOLS; i++)
		n += fake.pools[i].id != 0;
	return n;
}

static void good_device(void)
{
	fake.open_errno = fake.fail_errno = 0;
	fake.spared = 0;
	fake.features = (struct moe_kmod_features){.features = MOE_KMOD_HAS_POOLS | MOE_KMOD_HAS_LEASES |
							       MOE_KMOD_HAS_EVENTS,
						   .abi = MOE_KMOD_ABI,
						   .keeper = 1};
}

static void fail(unsigned long command, int error)
{
	fake.fails = command;
	fake.fail_errno = error;
}

static void state_is(enum modpools_state state, const char *part, const char *what)
{
	struct modpools m;
	struct moe_error err = {0};

	ok(modpools_open(&m, MODPOOLS_AUTO, &ops, &err) == 0 && m.state == state && strstr(m.why, part), "%s: %s", what,
	   modpools_state_name(state));
	if (m.state != state || !strstr(m.why, part))
		diag("%s: %s", modpools_state_name(m.state), m.why);
	modpools_close(&m, false);
	ok(modpools_open(&m, MODPOOLS_YES, &ops, &err) == (state == MODPOOLS_USED ? 0 : -ENODEV) &&
		   strstr(err.text, part),
	   "%s: Module=yes", what);
	modpools_close(&m, false);
}

static void test_states(void)
{
	struct modpools m;

	good_device();
	state_is(MODPOOLS_USED, "", "a good device");
	fake.open_errno = ENOENT;
	state_is(MODPOOLS_ABSENT, "modprobe", "no device");
	fake.open_errno = EACCES;
	state_is(MODPOOLS_REFUSED, "OWNER=", "a node of somebody else");
	good_device();
	fail(MOE_KMOD_FEATURES, ENOTTY);
	state_is(MODPOOLS_UNSUITABLE, "this release", "no features");
	good_device();
	fake.features.abi++;
	state_is(MODPOOLS_UNSUITABLE, "version 2", "a later version");
	good_device();
	fake.features.features = MOE_KMOD_HAS_LEASES;
	state_is(MODPOOLS_UNSUITABLE, "features 0x2", "no pools");
	good_device();
	fake.features.features |= 1ull << 40;
	state_is(MODPOOLS_USED, "", "features of the future");
	good_device();
	fake.features.keeper = 0;
	state_is(MODPOOLS_REFUSED, "OWNER=", "a client's device");
	good_device();
	fail(MOE_KMOD_WATCH, EBUSY);
	state_is(MODPOOLS_BUSY, "another daemon", "another daemon");
	fail(MOE_KMOD_WATCH, EIO);
	state_is(MODPOOLS_UNSUITABLE, "events", "no events");
	good_device();
	ok(modpools_open(&m, MODPOOLS_NO, &ops, NULL) == 0 && m.state == MODPOOLS_OFF, "Module=no");
}

/* -- a model ------------------------------------------------------------------------------------------------------ */

static struct host host;

static struct entry *load(struct registry *registry, uint64_t epoch)
{
	char path[4096];
	struct store_params params = {.path = path, .name = "tiny", .pages = PAGES_4K, .epoch = epoch, .host = &host};
	const char *source = getenv("MOE_SOURCE");
	struct moe_error err = {0};
	struct resident *model;
	struct entry *entry = NULL;

	snprintf(path, sizeof path, "%s/models/tinymoe", source ? source : ".");
	if (store_load(&model, &params, &err) < 0 || registry_add(registry, model, &entry, &err) < 0)
		die("%s", err.text);
	for (uint32_t i = 0; i < model->n_pools; i++)
		model->pools[i].rung = PAGES_2M; /* as if: this device does not look */
	return entry;
}

/* Both halves at once. */
static int keep(struct modpools *m, const struct entry *entry)
{
	struct modpools_gift gift;

	modpools_give(m, entry->model, &gift);
	return modpools_accept(m, &gift, entry->model->manifest->name, true);
}

/* A successor: how many models it has. */
static uint32_t succeed(struct modpools *m, struct registry *registry, uint64_t *next_epoch, int expected)
{
	struct moe_error err = {0};
	int r;

	if (modpools_open(m, MODPOOLS_AUTO, &ops, &err) < 0)
		die("%s", err.text);
	r = modpools_take(m, registry, NULL, &host, next_epoch, &err);
	is_int(r, expected, "what taking says");
	return registry->n;
}

static struct modpools_blob *blob_of(uint32_t i)
{
	return (struct modpools_blob *)(void *)fake.pools[i].blob;
}

static void test_round(void)
{
	struct registry registry = {0}, other = {0};
	struct entry *entry = load(&registry, 41);
	const uint32_t n = entry->model->n_pools;
	struct modpools m;
	uint64_t next_epoch = 1;

	good_device();
	modpools_open(&m, MODPOOLS_AUTO, &ops, NULL);
	entry->model->pools[0].rung = PAGES_THP;
	ok(keep(&m, entry) == -EMEDIUMTYPE && there() == 0, "transparent huge pages are not for the module");
	entry->model->pools[0].rung = PAGES_2M;
	ok(keep(&m, entry) == 0 && there() == n && modpools_kept(&m) == n, "a model is kept");
	modpools_close(&m, false);
	is_int(there(), n, "a daemon that dies leaves it");

	is_int(succeed(&m, &other, &next_epoch, 0), 1, "a successor has the model");
	is_int((int)next_epoch, 42, "and goes on with greater epochs");
	ok(other.head && other.head->model->manifest->epoch == 41 && m.taken == 1, "its epoch is the same");
	ok(other.head &&
		   memcmp(other.head->model->manifest, entry->model->manifest, entry->model->manifest->bytes) == 0,
	   "its manifest is the same");
	ok(other.head && memcmp(other.head->model->pools[0].map, entry->model->pools[0].map,
				entry->model->pools[0].bytes) == 0,
	   "its weights are the same");
	modpools_settle(&m);
	is_int(there(), n, "nothing was unwanted");
	modpools_release(&m, 40);
	is_int(there(), n, "another model's end is not its end");
	modpools_release(&m, 41);
	is_int(there(), 0, "unloaded, it is released");
	modpools_close(&m, false);
	registry_clear(&other);
	registry_clear(&registry);
}

/* Each error, at a model's first pool and at its last: it is kept whole or not at all, and served all the same. */
static void test_adopt_refused(void)
{
	static const int errors[] = {ENOMEM, EPERM, EBUSY, EEXIST, EINVAL, EMFILE, EIO, EINTR};
	struct registry registry = {0};
	struct entry *entry = load(&registry, 6);
	const uint32_t whole = entry->model->n_pools, n = 3;
	struct modpools m;

	good_device();
	modpools_open(&m, MODPOOLS_AUTO, &ops, NULL);
	for (uint32_t i = whole; i < n; i++)
		entry->model->pools[i] = entry->model->pools[0]; /* as if there were more nodes */
	entry->model->n_pools = n;
	for (uint32_t i = 0; i < sizeof errors / sizeof *errors; i++)
		for (uint32_t spared = 0; spared < n; spared += n - 1) {
			fail(MOE_KMOD_ADOPT, errors[i]);
			fake.spared = spared;
			is_int(keep(&m, entry), -errors[i], "ADOPT of pool %u of %u: %s", spared + 1, n,
			       strerror(errors[i]));
			ok(there() == 0 && modpools_kept(&m) == 0, "nothing is kept");
		}
	good_device();
	ok(keep(&m, entry) == 0 && there() == n, "what was refused can be kept later");
	modpools_close(&m, true);
	entry->model->n_pools = whole;
	registry_clear(&registry);
}

/* -- by the load's thread ----------------------------------------------------------------------------------------- */

static struct giver {
	struct modpools m;
	struct modpools_gift gift;
} giver;

static void give(const struct resident *model, void *userdata)
{
	struct giver *g = userdata;

	for (uint32_t i = 0; i < model->n_pools; i++)
		((struct resident *)(uintptr_t)model)->pools[i].rung = PAGES_2M; /* as in load() */
	modpools_give(&g->m, model, &g->gift);
}

static void test_not_the_reactor(bool wanted)
{
	char path[4096];
	const struct store_params params = {.path = path, .name = "tiny", .pages = PAGES_4K, .epoch = 8, .host = &host};
	const struct load_after after = {give, &giver};
	const char *source = getenv("MOE_SOURCE");
	struct moe_error err = {0};
	struct load *load = NULL;
	struct loop *loop = NULL;
	uint32_t n;

	snprintf(path, sizeof path, "%s/models/tinymoe", source ? source : ".");
	good_device();
	modpools_open(&giver.m, MODPOOLS_AUTO, &ops, NULL);
	fake.slow = true;
	sem_init(&fake.adopting, 0, 0);
	sem_init(&fake.go_on, 0, 0);
	if (loop_new(&loop, &(struct loop_hooks){.userdata = NULL}, &err) < 0 ||
	    load_start(&load, &params, &after, loop, &err) < 0)
		die("%s", err.text);
	sem_wait(&fake.adopting);
	/* Were ADOPT called by whoever finishes the load, this would wait for ever. */
	ok(!atomic_load(&load->finished), "while a pool is adopted the load goes on, and its reactor is here");
	fake.slow = false;
	sem_post(&fake.go_on);
	while (!atomic_load(&load->finished))
		usleep(1000);
	n = load->result->n_pools;
	ok(load->code == 0 && giver.gift.n == n && there() == n && modpools_kept(&giver.m) == 0,
	   "all were given, before anybody has accepted them");
	ok(modpools_accept(&giver.m, &giver.gift, "tiny", wanted) == 0 && giver.gift.n == 0, "accepted%s",
	   wanted ? "" : ", and not wanted");
	ok(there() == (wanted ? n : 0) && modpools_kept(&giver.m) == there(), "%u are kept", there());
	modpools_close(&giver.m, true);
	is_int(there(), 0, "and released at the end");
	load_free(load);
	loop_free(loop);
}

static void test_keeper_first(void)
{
	struct registry registry = {0};
	struct entry *entry = load(&registry, 5);
	struct modpools m;
	uint64_t next_epoch = 9;

	good_device();
	modpools_open(&m, MODPOOLS_AUTO, &ops, NULL);
	keep(&m, entry);
	modpools_close(&m, false);
	is_int(succeed(&m, &registry, &next_epoch, 0), 1, "what a keeper has brought is not taken again");
	modpools_settle(&m);
	ok(there() == entry->model->n_pools && m.taken == 0 && next_epoch == 9, "and stays with the module");
	modpools_close(&m, true);
	is_int(there(), 0, "who ends in order releases all");
	registry_clear(&registry);
}

static void test_unusable(void)
{
	static const char *const names[] = {
		"another version", "no such magic",          "another digest", "sizes that do not fit",
		"a pool too many", "a pool that is not one", "too short",      "another epoch"};
	struct registry registry = {0};
	struct entry *entry = load(&registry, 7);

	for (uint32_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct registry other = {0};
		struct modpools m;
		uint64_t next_epoch = 1;

		good_device();
		modpools_open(&m, MODPOOLS_AUTO, &ops, NULL);
		keep(&m, entry);
		modpools_close(&m, false);
		blob_of(0)->version += i == 0;
		blob_of(0)->magic ^= i == 1;
		blob_of(0)->digest[3] ^= i == 2;
		blob_of(0)->manifest_bytes += i == 3 ? UINT64_MAX - 5 : 0;
		blob_of(0)->n_pools += i == 4;
		blob_of(0)->index += i == 5 ? 77 : 0;
		if (i == 6)
			fake.pools[0].blob_bytes = 8;
		fake.pools[0].epoch += i == 7;
		is_int(succeed(&m, &other, &next_epoch, 0), 0, "%s: is not taken", names[i]);
		ok(there() > 0, "%s: stays until this daemon is known to start", names[i]);
		modpools_settle(&m);
		is_int(there(), 0, "%s: is released", names[i]);
		modpools_close(&m, false);
	}
	registry_clear(&registry);
}

static void test_refusals(void)
{
	struct registry registry = {0}, other = {0};
	struct entry *entry = load(&registry, 3);
	struct modpools m;
	uint64_t next_epoch = 1;

	good_device();
	modpools_open(&m, MODPOOLS_AUTO, &ops, NULL);
	keep(&m, entry);
	modpools_close(&m, false);
	fail(MOE_KMOD_TAKE, ENOMEM);
	is_int(succeed(&m, &other, &next_epoch, -ENOMEM), 0, "TAKE lacks memory: a later daemon may");
	modpools_settle(&m);
	modpools_close(&m, false);
	ok(there() > 0, "nothing is lost by that");
	fail(MOE_KMOD_POOL, EIO);
	is_int(succeed(&m, &other, &next_epoch, -EIO), 0, "POOL fails");
	modpools_close(&m, false);
	good_device();
	fail(MOE_KMOD_POOL, ENOENT);
	fake.spared = there() + 1;
	is_int(succeed(&m, &other, &next_epoch, 0), 0, "pools that go while they are looked at are no model");
	modpools_close(&m, false);
	good_device();
	fake.pools[0].owner++;
	is_int(succeed(&m, &other, &next_epoch, 0), 0, "another user's pool is not ours");
	modpools_settle(&m);
	modpools_close(&m, true);
	ok(there() > 0, "and stays his");
	fake.pools[0].owner--;
	fail(MOE_KMOD_RELEASE, EPERM);
	is_int(succeed(&m, &other, &next_epoch, 0), 1, "a model");
	modpools_release(&m, 3);
	ok(there() > 0 && modpools_kept(&m) == 0, "RELEASE is refused: a word in the log");
	good_device();
	modpools_close(&m, false);
	registry_clear(&other);
	registry_clear(&registry);
	is_int(let_go(&(struct moe_kmod_release){.id = fake.pools[0].id}), 0, "the test's device is empty again");
}

int main(void)
{
	host_read(&host, false);
	test_states();
	test_round();
	test_adopt_refused();
	test_not_the_reactor(true);
	test_not_the_reactor(false);
	test_keeper_first();
	test_unusable();
	test_refusals();
	return tap_done();
}
