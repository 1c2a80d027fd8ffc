/* SPDX-License-Identifier: MIT */
/* Commands as such, and pools: what is adopted, what is refused and why, and what a successor gets back. */
#include "tests/kmod/device.h"

#include <linux/mempolicy.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGES 4u

/* A command of `nr` with a struct of `bytes`. */
static unsigned long command(unsigned nr, size_t bytes)
{
	return _IOC(_IOC_READ | _IOC_WRITE, MOE_KMOD_IOC, nr, bytes);
}

static void test_sizes(int dev)
{
	struct {
		struct moe_kmod_features f;
		uint64_t more;
	} longer = {.more = 0};

	ok(ioctl(dev, command(0, sizeof longer), &longer) == 0 && longer.f.abi == MOE_KMOD_ABI,
	   "a longer struct whose end is zero is served");
	longer.more = 1;
	fails(ioctl(dev, command(0, sizeof longer), &longer), E2BIG, "one whose end is not zero: E2BIG");
	fails(ioctl(dev, command(0, 31), &longer), EINVAL, "a shorter one than ever was: EINVAL");
	fails(ioctl(dev, command(0, 0), &longer), EINVAL, "none: EINVAL");
	fails(ioctl(dev, command(8, 48), (struct moe_kmod_leases[1]){{0}}), ENOENT,
	      "one of the first version is served");
	fails(ioctl(dev, command(COMMANDS, 32), &longer), ENOTTY, "an unknown command: ENOTTY");
	fails(ioctl(dev, command(255, 32), &longer), ENOTTY, "the last number: ENOTTY");
	fails(ioctl(dev, _IOR(MOE_KMOD_IOC, 0, struct moe_kmod_features), &longer), ENOTTY,
	      "another direction: ENOTTY");
	fails(ioctl(dev, _IOWR('x', 0, struct moe_kmod_features), &longer), ENOTTY, "another device's command: ENOTTY");
	fails(ioctl(dev, MOE_KMOD_FEATURES, (void *)8), EFAULT, "no struct: EFAULT");
}

/* Each reserved byte of each struct. */
static void test_reserved(int dev)
{
	static const struct {
		const char *name;
		unsigned long command;
		size_t offset, bytes;
	} fields[] = {
		{"FEATURES", MOE_KMOD_FEATURES, offsetof(struct moe_kmod_features, client), 16},
		{"ADOPT's flags", MOE_KMOD_ADOPT, offsetof(struct moe_kmod_adopt, flags) + 1, 3},
		{"POOL", MOE_KMOD_POOL, offsetof(struct moe_kmod_pool, flags), 8},
		{"RELEASE", MOE_KMOD_RELEASE, offsetof(struct moe_kmod_release, reserved), 8},
		{"DROP", MOE_KMOD_DROP, offsetof(struct moe_kmod_drop, reserved), 8},
		{"WATCH", MOE_KMOD_WATCH, offsetof(struct moe_kmod_watch, reserved), 8},
		{"LEASES", MOE_KMOD_LEASES, offsetof(struct moe_kmod_leases, reserved), 4},
		{"MAP", MOE_KMOD_MAP, offsetof(struct moe_kmod_map, reserved), 8},
		{"SEAL", MOE_KMOD_SEAL, offsetof(struct moe_kmod_seal, reserved), 8},
		{"DMABUF", MOE_KMOD_DMABUF, offsetof(struct moe_kmod_dmabuf, reserved), 4},
		{"LEASE's flags", MOE_KMOD_LEASE, offsetof(struct moe_kmod_lease, flags) + 1, 3},
	};
	int fd = pool_file(1, 0, -1, ALL_SEALS);

	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		size_t refused = 0;

		for (size_t b = 0; b < fields[i].bytes; b++) {
			union {
				struct moe_kmod_adopt adopt;
				uint8_t bytes[256];
			} arg = {.bytes = {0}};

			if (fields[i].command == MOE_KMOD_ADOPT)
				arg.adopt = adopt_of(fd, 1, 1, "m");
			arg.bytes[fields[i].offset + b] = 1;
			refused += ioctl(dev, fields[i].command, &arg) < 0 && errno == EINVAL;
		}
		ok(refused == fields[i].bytes, "%s: each of %zu reserved bytes must be zero", fields[i].name,
		   fields[i].bytes);
	}
	close(fd);
}

#define EVERYTHING                                                                                                     \
	(MOE_KMOD_HAS_POOLS | MOE_KMOD_HAS_LEASES | MOE_KMOD_HAS_EVENTS | MOE_KMOD_HAS_SEAL | MOE_KMOD_HAS_DMABUF |    \
	 MOE_KMOD_HAS_QUEUE)

void test_commands(void)
{
	struct moe_kmod_features f = {0};
	int dev = device_open();

	ok(ioctl(dev, MOE_KMOD_FEATURES, &f) == 0, "FEATURES");
	ok(f.abi == MOE_KMOD_ABI && (f.features & ~(uint64_t)(MOE_KMOD_HAS_URING | MOE_KMOD_HAS_STAYS)) == EVERYTHING &&
		   f.keeper == 1,
	   "version %u, features 0x%llx, root is the keeper", f.abi, (unsigned long long)f.features);
	test_sizes(dev);
	test_reserved(dev);
	close(dev);
}

/* -- what is refused ---------------------------------------------------------------------------------------------- */

static void refuse(int dev, struct moe_kmod_adopt a, int error, const char *what)
{
	fails(ioctl(dev, MOE_KMOD_ADOPT, &a), error, "ADOPT refuses %s: %s", what, strerror(error));
}

/* A file of huge pages that has a name. */
static int named_file(void)
{
	int fd;

	mkdir("/huge", 0700);
	if (mount("none", "/huge", "hugetlbfs", 0, "pagesize=2M") < 0)
		return -1;
	fd = open("/huge/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (ftruncate(fd, HUGE_BYTES) < 0 || fallocate(fd, 0, 0, HUGE_BYTES) < 0)
		return -1;
	return fd;
}

static void refuse_files(int dev)
{
	int fd = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (ftruncate(fd, HUGE_BYTES) < 0)
		diag("ftruncate: %s", strerror(errno));
	refuse(dev, adopt_of(fd, 1, 1, "m"), EMEDIUMTYPE, "small pages");
	close(fd);
	refuse(dev, adopt_of(-1, 1, 1, "m"), EBADF, "no file");
	refuse(dev, adopt_of(dev, 1, 1, "m"), EMEDIUMTYPE, "the device itself");
	fd = named_file();
	refuse(dev, adopt_of(fd, 1, 1, "m"), EMEDIUMTYPE, "a file with a name");
	close(fd);
	unlink("/huge/file");
	umount("/huge");
	fd = pool_file(1, 0, -1, F_SEAL_GROW);
	refuse(dev, adopt_of(fd, 1, 1, "m"), EPERM, "a file that may shrink");
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
	fchmod(fd, 0620);
	refuse(dev, adopt_of(fd, 1, 1, "m"), EACCES, "a file that its group may write");
	fchmod(fd, 0602);
	refuse(dev, adopt_of(fd, 1, 1, "m"), EACCES, "a file that all may write");
	close(fd);
	fd = memfd_create("hole", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB);
	if (fchmod(fd, 0600) < 0 || ftruncate(fd, 2 * HUGE_BYTES) < 0 || fallocate(fd, 0, HUGE_BYTES, HUGE_BYTES) < 0 ||
	    fcntl(fd, F_ADD_SEALS, ALL_SEALS) < 0)
		diag("a file with a hole: %s", strerror(errno));
	refuse(dev, adopt_of(fd, 2, 1, "m"), ENODATA, "a file with a hole");
	close(fd);
}

/* The answer cannot be written: nobody would know the pool. */
static void test_adopt_without_answer(int dev, int fd)
{
	struct moe_kmod_adopt *a = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*a = adopt_of(fd, 1, 1, "m");
	mprotect(a, 4096, PROT_READ);
	fails(ioctl(dev, MOE_KMOD_ADOPT, a), EFAULT, "ADOPT without room for the answer");
	ok(counter("pools") == 0 && counter("pages") == 0 && counter("adopted") == 1, "the pool was let go of");
	munmap(a, 4096);
}

void test_adopt(void)
{
	int dev = device_open(), fd = pool_file(1, 0, -1, ALL_SEALS);
	struct moe_kmod_adopt a;

	refuse_files(dev);
	refuse(dev, adopt_of(fd, 2, 1, "m"), EINVAL, "a size that is not the file's");
	refuse(dev, adopt_of(fd, 0, 1, "m"), EINVAL, "no size");
	refuse(dev, adopt_of(fd, 1, 0, "m"), EINVAL, "epoch 0");
	refuse(dev, adopt_of(fd, 1, 1, ""), EINVAL, "no name");
	a = adopt_of(fd, 1, 1, "m");
	memset(a.name, 'm', sizeof a.name);
	refuse(dev, a, EINVAL, "a name without an end");
	a = adopt_of(fd, 1, 1, "m");
	a.name[40] = 1;
	refuse(dev, a, EINVAL, "rubbish behind the name");
	a = adopt_of(fd, 1, 1, "m");
	a.node = -2;
	refuse(dev, a, EINVAL, "node -2");
	a = adopt_of(fd, 1, 1, "m");
	a.blob_bytes = MOE_KMOD_BLOB_MAX + 1;
	refuse(dev, a, EFBIG, "a blob that is too large");
	a.blob_bytes = 4096;
	a.blob = 8;
	refuse(dev, a, EFAULT, "a blob that is not there");
	ok(counter("pages") == 0 && counter("adopted") == 0, "nothing was adopted");
	test_adopt_without_answer(dev, fd);
	close(fd);
	close(dev);
}

/* -- what is kept ------------------------------------------------------------------------------------------------- */

static uint8_t blob[100000];

static uint64_t adopt_with_blob(int dev, int node)
{
	int fd = pool_file(PAGES, (unsigned)node, node, ALL_SEALS);
	struct moe_kmod_adopt a = adopt_of(fd, PAGES, 7, node ? "second" : "first");

	a.node = node;
	a.blob = (uintptr_t)blob;
	a.blob_bytes = sizeof blob;
	ok(ioctl(dev, MOE_KMOD_ADOPT, &a) == 0 && a.id, "a file on node %d is adopted", node);
	refuse(dev, a, EEXIST, "a file that it has");
	close(fd);
	return a.id;
}

static bool on_node(int fd, int node)
{
	char *at = mmap(NULL, PAGES * HUGE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
	bool good = true;

	for (unsigned p = 0; p < PAGES; p++) {
		void *page = at + p * HUGE_BYTES;
		int where = -1;

		good &= *(volatile char *)page != 127; /* it is there */
		syscall(SYS_move_pages, 0, 1ul, &page, NULL, &where, 0);
		good &= where == node;
	}
	munmap(at, PAGES * HUGE_BYTES);
	return good;
}

static void test_take(int dev, uint64_t id, int node)
{
	uint8_t *copy = calloc(1, sizeof blob);
	struct moe_kmod_take t = {.id = id, .blob = (uintptr_t)copy, .blob_bytes = sizeof blob};

	ok(ioctl(dev, MOE_KMOD_TAKE, &t) == 0, "TAKE");
	ok(t.blob_bytes == sizeof blob && memcmp(copy, blob, sizeof blob) == 0, "the blob is as it was");
	ok(pool_is(t.fd, PAGES, (unsigned)node), "the content is as it was");
	ok(on_node(t.fd, node), "its pages are on node %d", node);
	ok(fcntl(t.fd, F_GETFD) == FD_CLOEXEC, "close-on-exec");
	ok(fcntl(t.fd, F_GET_SEALS) == ALL_SEALS, "seals");
	close(t.fd);
	t = (struct moe_kmod_take){.id = id, .blob = (uintptr_t)copy, .blob_bytes = sizeof blob - 1};
	fails(ioctl(dev, MOE_KMOD_TAKE, &t), ENOSPC, "TAKE with too little room for the blob");
	t = (struct moe_kmod_take){.id = id, .blob = 8, .blob_bytes = sizeof blob};
	fails(ioctl(dev, MOE_KMOD_TAKE, &t), EFAULT, "TAKE with no room at all");
	t = (struct moe_kmod_take){.id = id};
	ok(ioctl(dev, MOE_KMOD_TAKE, &t) == 0 && t.blob_bytes == sizeof blob, "TAKE without the blob");
	close(t.fd);
	free(copy);
}

static void test_list(int dev, const uint64_t ids[2])
{
	struct moe_kmod_pool p = {0};

	for (int i = 0; i < 2; i++)
		ok(ioctl(dev, MOE_KMOD_POOL, &p) == 0 && p.id == ids[i] && p.epoch == 7 &&
			   p.bytes == PAGES * HUGE_BYTES && p.page_bytes == HUGE_BYTES && p.blob_bytes == sizeof blob &&
			   p.leases == 0 && p.owner == 0 && p.node == i && strcmp(p.name, i ? "second" : "first") == 0,
		   "POOL tells what the %s one is", i ? "second" : "first");
	fails(ioctl(dev, MOE_KMOD_POOL, &p), ENOENT, "POOL: and that there are no more");
}

static void test_epoch(int dev, uint64_t id)
{
	struct moe_kmod_epoch e = {.id = id, .epoch = 7};

	fails(ioctl(dev, MOE_KMOD_EPOCH, &e), EINVAL, "EPOCH: the same one again");
	e.epoch = 6;
	fails(ioctl(dev, MOE_KMOD_EPOCH, &e), EINVAL, "EPOCH: an older one");
	e.epoch = 8;
	ok(ioctl(dev, MOE_KMOD_EPOCH, &e) == 0, "EPOCH: a newer one");
}

/* How many descriptors are open: the next one tells. */
static int next_fd(void)
{
	int fd = open("/", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}

/* Commands without an answer, from memory that cannot be written. */
static void test_read_only_struct(int dev)
{
	uint64_t *arg = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t pool = pool_new(dev, 1, 1, 1);
	int good = 0;

	for (int i = 0; i < 4; i++) {
		static const unsigned long of[] = {MOE_KMOD_WATCH, MOE_KMOD_DROP, MOE_KMOD_EPOCH, MOE_KMOD_RELEASE};

		mprotect(arg, 4096, PROT_READ | PROT_WRITE);
		arg[0] = i == 0 ? 0 : i == 1 ? lease_new(dev, pool, 1) : pool;
		arg[1] = i == 2 ? 9 : 0;
		mprotect(arg, 4096, PROT_READ);
		good += ioctl(dev, of[i], arg) == 0;
	}
	ok(good == 4, "WATCH, DROP, EPOCH and RELEASE write no answer (%d of 4)", good);
	munmap(arg, 4096);
}

void test_pools(void)
{
	int dev = device_open(), dev2, before;
	uint64_t ids[2];

	for (size_t i = 0; i < sizeof blob; i++)
		blob[i] = (uint8_t)(i * 7 + i / 256);
	test_read_only_struct(dev);
	for (int i = 0; i < 2; i++)
		ids[i] = adopt_with_blob(dev, i);
	ok(counter("pools") == 2 && counter("pages") == 2 * PAGES, "each of %u pages is pinned", 2 * PAGES);
	/* Without a process that has it open. */
	close(dev);
	before = next_fd();
	dev2 = device_open();
	test_list(dev2, ids);
	for (int i = 0; i < 2; i++)
		test_take(dev2, ids[i], i);
	close(dev2);
	ok(next_fd() == before, "no descriptor is left");
	dev2 = device_open();
	test_epoch(dev2, ids[0]);
	for (int i = 0; i < 2; i++)
		ok(pool_release(dev2, ids[i]) == 0, "RELEASE");
	fails(pool_release(dev2, ids[0]), ESTALE, "RELEASE again");
	fails(pool_release(dev2, ids[1] + 1), ENOENT, "RELEASE of what never was");
	fails(pool_release(dev2, 0), ENOENT, "RELEASE of none");
	fails(ioctl(dev2, MOE_KMOD_TAKE, &(struct moe_kmod_take){.id = ids[0]}), ESTALE, "TAKE of what was released");
	close(dev2);
}
