/* SPDX-License-Identifier: MIT */
/*
 * Register, then seal: what a client that mapped a lease writable can do before SEAL, and cannot after.
 *
 * The client is a process of its own, of a user without any right; it writes what it saw into memory that it shares
 * with the test.
 */
#include "tests/kmod/seals.h"

#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define PAGES (SEAL_PAGES + 1) /* of the pool: the lease begins with its second */
#define BYTES (SEAL_PAGES * HUGE_BYTES)
#define SEED 31u

static struct said {
	uint64_t pool, lease;
	int map_error, again_error, seal_error, drop_error, watched_error, half_error, forked_error;
	bool wrote, sealed, dropped, refused[32], same[32], readable, pin_wrote;
} * said;

static int map(int dev, uint64_t lease, char **at)
{
	struct moe_kmod_map m = {.lease = lease};
	int r = ioctl(dev, MOE_KMOD_MAP, &m);

	*at = r < 0 ? NULL : (char *)(uintptr_t)m.address;
	return r < 0 ? errno : m.bytes != BYTES;
}

static int seal(int dev, uint64_t lease)
{
	return ioctl(dev, MOE_KMOD_SEAL, &(struct moe_kmod_seal){.lease = lease}) < 0 ? errno : 0;
}

static int drop(int dev, uint64_t lease)
{
	return ioctl(dev, MOE_KMOD_DROP, &(struct moe_kmod_drop){.id = lease}) < 0 ? errno : 0;
}

static uint64_t lease_whole(int dev, uint64_t pool)
{
	struct moe_kmod_lease l = lease_of(pool, 1, HUGE_BYTES, BYTES);

	return ioctl(dev, MOE_KMOD_LEASE, &l) < 0 ? 0 : l.id;
}

static uint64_t pool_of(int dev, int fd, uint32_t flags)
{
	struct moe_kmod_adopt a = adopt_of(fd, PAGES, 1, "to be sealed");

	a.flags = flags;
	return ioctl(dev, MOE_KMOD_ADOPT, &a) < 0 ? 0 : a.id;
}

/* Compares what is mapped with a copy. */
static bool is_same(const char *at, const uint64_t *copy)
{
	for (uint64_t w = 0; w < BYTES / 8; w += 512)
		if (((const volatile uint64_t *)(const void *)at)[w] != copy[w / 512])
			return false;
	return true;
}

static void remember(const char *at, uint64_t *copy)
{
	for (uint64_t w = 0; w < BYTES / 8; w += 512)
		copy[w / 512] = ((const uint64_t *)(const void *)at)[w];
}

static int become_somebody(void)
{
	int failed = setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0;

	/* Or nobody may look into its /proc, itself neither. */
	prctl(PR_SET_DUMPABLE, 1);
	return failed ? -1 : device_open();
}

/* Every reason for which SEAL must not be done, one after the other. */
static void not_yet(int dev, char *at)
{
	int uffd;
	pid_t pid;

	said->seal_error = seal(dev, said->lease);
	said->drop_error = drop(dev, said->lease);
	mprotect(at, HUGE_BYTES, PROT_READ);
	said->half_error = seal(dev, said->lease);
	mprotect(at, BYTES, PROT_READ);
	uffd = seal_watch(at);
	said->watched_error = uffd < 0 ? -1 : seal(dev, said->lease);
	close(uffd);
	pid = fork();
	while (pid == 0)
		pause();
	said->forked_error = seal(dev, said->lease);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void pin_still_writes(int ring, char *at, const uint64_t *copy)
{
	int fd = memfd_create("word", MFD_CLOEXEC);
	uint64_t word = ~copy[0];
	bool good = pwrite(fd, &word, 8, 0) == 8 && seal_pin_writes(ring, fd, at);

	said->pin_wrote = good && *(const volatile uint64_t *)(const void *)at == word;
	close(fd);
}

static void a_client(void *arg)
{
	static uint64_t copy[BYTES / 4096];
	int dev = become_somebody(), ring;
	char *at, *again;

	(void)arg;
	said->lease = lease_whole(dev, said->pool);
	said->map_error = map(dev, said->lease, &at);
	if (said->map_error)
		_exit(1);
	said->again_error = map(dev, said->lease, &again);
	remember(at, copy);
	at[8] = 1;
	said->wrote = at[8] == 1;
	at[8] = 0;
	ring = seal_pin(at);
	not_yet(dev, at);
	said->sealed = seal(dev, said->lease) == 0 && seal(dev, said->lease) == 0;
	said->readable = is_same(at, copy);
	for (unsigned i = 0; i < seal_ways_n; i++) {
		said->refused[i] = seal_ways[i].refused(at);
		said->same[i] = is_same(at, copy);
	}
	child_ready();
	pin_still_writes(ring, at, copy);
	said->dropped = drop(dev, said->lease) == 0;
	child_ready();
}

static void check_before(void)
{
	ok(said->map_error == 0, "MAP by a user without rights (%s)", strerror(said->map_error));
	ok(said->again_error == EEXIST, "MAP again");
	ok(said->wrote, "until SEAL it can write");
	ok(said->seal_error == EBUSY, "SEAL of what is writable");
	ok(said->drop_error == EBUSY, "DROP of what is mapped and not sealed");
	ok(said->half_error == EBUSY, "SEAL while a part is writable");
	ok(said->watched_error == EBUSY, "SEAL while a userfaultfd watches (%d)", said->watched_error);
	ok(said->forked_error == EBUSY, "SEAL while a child has it, too");
	ok(said->sealed, "SEAL, and again");
	ok(said->readable, "it can be read after SEAL");
}

/* The state of the only lease. */
static uint32_t state_of_lease(int dev)
{
	struct moe_kmod_leases it = {0};

	return ioctl(dev, MOE_KMOD_LEASES, &it) < 0 ? ~0u : it.state;
}

static void test_sealed(int dev)
{
	int fd = pool_file(PAGES, SEED, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	struct child c;

	said->pool = pool_of(dev, fd, MOE_KMOD_POOL_MAP);
	c = child_start(a_client, NULL);
	child_wait_ready(&c);
	check_before();
	for (unsigned i = 0; i < seal_ways_n; i++)
		ok(said->refused[i] && said->same[i], "%s is %srefused after SEAL, the memory is %s", seal_ways[i].name,
		   said->refused[i] ? "" : "NOT ", said->same[i] ? "the same" : "NOT the same");
	ok(pool_is(fd, PAGES, SEED), "the pool is as it was adopted");
	ok(state_of_lease(dev) == (MOE_KMOD_LEASE_MAPPED | MOE_KMOD_LEASE_SEALED), "LEASES tells that it is sealed");
	child_go(&c);
	child_wait_ready(&c);
	ok(said->pin_wrote,
	   "a pin that was taken before, as a GPU's driver takes it, writes still: no CPU's flag stops it");
	ok(said->dropped, "DROP of what is sealed");
	ok(pool_release(dev, said->pool) == 0 && counter_becomes("pages", 0),
	   "the pool is released, the mapping stays");
	child_go(&c);
	ok(child_end(&c, 0) == 0, "the client ends");
	close(fd);
}

/* -- what the file counts ----------------------------------------------------------------------------------------- */

/* Maps, seals if asked to, and lets the lease go, not the mapping. */
static void a_mapper(void *arg)
{
	int dev = become_somebody();
	char *at;

	said->lease = lease_whole(dev, said->pool);
	said->map_error = map(dev, said->lease, &at);
	if (arg) {
		/* In three parts, which are two mappings in other places. */
		mprotect(at, HUGE_BYTES, PROT_READ);
		mprotect(at + HUGE_BYTES, HUGE_BYTES, PROT_READ);
		said->sealed = seal(dev, said->lease) == 0;
	}
	close(dev);
	child_ready();
}

static bool maps_writable(int fd)
{
	void *at = mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at != MAP_FAILED && munmap(at, HUGE_BYTES) == 0;
}

/* F_SEAL_WRITE is for files that no mapping may write, so it tells how many the kernel thinks there are. */
static void test_count(int dev, bool sealed)
{
	int fd = pool_file(PAGES, SEED, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	const char *how = sealed ? "sealed" : "not sealed";
	struct moe_kmod_event event;
	struct child c;

	*said = (struct said){.pool = pool_of(dev, fd, MOE_KMOD_POOL_MAP)};
	c = child_start(a_mapper, sealed ? said : NULL);
	child_wait_ready(&c);
	ok(said->map_error == 0 && said->sealed == sealed, "a mapping that is %s", how);
	ok(read(dev, &event, sizeof event) == sizeof event &&
		   event.state == (uint32_t)(MOE_KMOD_LEASE_MAPPED | (sealed ? MOE_KMOD_LEASE_SEALED : 0)),
	   "the event of its lease's end tells so");
	pool_release(dev, said->pool);
	ok(counter_becomes("pages", 0) && maps_writable(fd), "the owner maps the file writable");
	if (sealed)
		ok(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0, "F_SEAL_WRITE while a sealed mapping is there");
	else
		fails(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY, "F_SEAL_WRITE while another is there");
	child_end(&c, SIGKILL);
	ok(sealed ? pool_is(fd, PAGES, SEED) : maps_writable(fd) && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0,
	   "when it is gone the file can be %s", sealed ? "read" : "sealed");
	close(fd);
}

/* As before, but the mapping is gone before the file is sealed: what is not counted must not be taken off again. */
static void test_count_after(int dev)
{
	int fd = pool_file(PAGES, SEED, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	struct moe_kmod_event event;
	struct child c;

	said->pool = pool_of(dev, fd, MOE_KMOD_POOL_MAP);
	c = child_start(a_mapper, said);
	child_wait_ready(&c);
	child_end(&c, SIGKILL);
	ok(read(dev, &event, sizeof event) == sizeof event, "the mapper was killed");
	pool_release(dev, said->pool);
	ok(counter_becomes("pages", 0) && maps_writable(fd) && maps_writable(fd),
	   "after a sealed mapping the file can be mapped writable");
	ok(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0, "and sealed");
	close(fd);
}

/* -- what MAP is not for ------------------------------------------------------------------------------------------ */

static void test_refused(int dev)
{
	int plain = pool_file(PAGES, SEED, -1, F_SEAL_SHRINK | F_SEAL_GROW),
	    sealed = pool_file(PAGES, 1, -1, ALL_SEALS);
	uint64_t id = pool_of(dev, plain, 0), lease = lease_whole(dev, id), small;
	struct moe_kmod_map m = {.lease = 1, .reserved = 1};
	struct moe_kmod_pool p = {0};
	char *at;

	ok(map(dev, lease, &at) == EPERM, "MAP where the keeper does not allow it");
	ok(seal(dev, lease) == ENOENT, "SEAL of what is not mapped");
	ok(map(dev, lease + 99, &at) == ENOENT && seal(dev, lease + 99) == ENOENT, "MAP and SEAL of no lease");
	fails(ioctl(dev, MOE_KMOD_MAP, &m), EINVAL, "MAP with a reserved field");
	drop(dev, lease);
	pool_release(dev, id);
	ok(pool_of(dev, plain, 4) == 0 && errno == EINVAL, "ADOPT with an unknown flag");
	id = pool_of(dev, sealed, MOE_KMOD_POOL_MAP);
	ok(ioctl(dev, MOE_KMOD_POOL, &p) == 0 && p.id == id && p.flags == MOE_KMOD_POOL_MAP, "POOL tells of the flag");
	lease = lease_whole(dev, id);
	ok(map(dev, lease, &at) == EPERM && map(dev, lease, &at) == EPERM, "MAP of a file with F_SEAL_WRITE");
	ok(state_of_lease(dev) == 0 && drop(dev, lease) == 0, "it was not mapped");
	small = lease_new(dev, id, 1);
	ok(map(dev, small, &at) == EINVAL && drop(dev, small) == 0, "MAP of a part of a huge page");
	pool_release(dev, id);
	close(plain);
	close(sealed);
}

/* The answer cannot be written: nothing is mapped. */
static void test_no_answer(int dev)
{
	struct moe_kmod_map *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = pool_file(PAGES, SEED, -1, F_SEAL_SHRINK | F_SEAL_GROW);
	uint64_t id = pool_of(dev, fd, MOE_KMOD_POOL_MAP);

	m->lease = lease_whole(dev, id);
	mprotect(m, 4096, PROT_READ);
	fails(ioctl(dev, MOE_KMOD_MAP, m), EFAULT, "MAP without room for the answer");
	ok(drop(dev, m->lease) == 0, "nothing is mapped");
	pool_release(dev, id);
	ok(counter_becomes("pages", 0) && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0, "the file can be sealed");
	munmap(m, 4096);
	close(fd);
}

void test_seals(void)
{
	int dev = device_open();

	said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	chmod(MOE_KMOD_DEVICE, 0666);
	test_refused(dev);
	test_no_answer(dev);
	test_sealed(dev);
	ok(ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) == 0, "the keeper watches");
	test_count(dev, false);
	test_count(dev, true);
	test_count_after(dev);
	chmod(MOE_KMOD_DEVICE, 0600);
	munmap(said, sizeof *said);
	close(dev);
}
