/* SPDX-License-Identifier: MIT */
/* Who may do what: the owner of the device's node, an administrator, a client, and who got a descriptor from them. */
#include "tests/kmod/device.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Runs `run` in a child as this user, without any capability; true when it says so. */
static bool as_user(uid_t uid, bool (*run)(void *), void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
			_exit(2);
		_exit(run(arg) ? 0 : 1);
	}
	return waitpid(pid, &status, 0) == pid && status == 0;
}

static bool refused(int dev, unsigned long command, void *arg)
{
	return ioctl(dev, command, arg) < 0 && errno == EPERM;
}

/* Everything that only the keeper may do. */
static bool all_refused(int dev, uint64_t pool)
{
	int fd = pool_file(1, 1, -1, ALL_SEALS);
	struct moe_kmod_adopt a = adopt_of(fd, 1, 1, "theirs");
	struct moe_kmod_take t = {.id = pool};
	struct moe_kmod_epoch e = {.id = pool, .epoch = 99};
	bool good = fd >= 0 && refused(dev, MOE_KMOD_ADOPT, &a) && refused(dev, MOE_KMOD_TAKE, &t) &&
		    refused(dev, MOE_KMOD_RELEASE, &(struct moe_kmod_release){.id = pool}) &&
		    refused(dev, MOE_KMOD_EPOCH, &e) && refused(dev, MOE_KMOD_LEASES, &(struct moe_kmod_leases){0}) &&
		    refused(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0});

	close(fd);
	return good;
}

static bool a_client(void *arg)
{
	const uint64_t pool = *(uint64_t *)arg;
	int dev = device_open();
	struct moe_kmod_features f = {0};
	struct moe_kmod_pool p = {0};
	struct moe_kmod_lease l = lease_of(pool, 1, 0, 4096);

	return ioctl(dev, MOE_KMOD_FEATURES, &f) == 0 && f.keeper == 0 && ioctl(dev, MOE_KMOD_POOL, &p) == 0 &&
	       p.id == pool && ioctl(dev, MOE_KMOD_LEASE, &l) == 0 && all_refused(dev, pool);
}

/* An owner of the node without a capability adopts, and leaves it behind. */
static bool an_owner(void *arg)
{
	uint64_t *pool = arg; /* shared with the parent */
	int dev = device_open();

	*pool = pool_new(dev, 1, 5, 3);
	return *pool != 0;
}

static bool the_next_owner(void *arg)
{
	struct moe_kmod_take t = {.id = *(uint64_t *)arg};
	int dev = device_open();

	return ioctl(dev, MOE_KMOD_TAKE, &t) == 0 && pool_is(t.fd, 1, 5) && pool_release(dev, t.id) == 0;
}

/* Another user who has become the owner of the node. */
static bool another_owner(void *arg)
{
	struct moe_kmod_features f = {0};
	struct moe_kmod_take t = {.id = *(uint64_t *)arg};
	int dev = device_open();

	return ioctl(dev, MOE_KMOD_FEATURES, &f) == 0 && f.keeper == 1 && refused(dev, MOE_KMOD_TAKE, &t) &&
	       refused(dev, MOE_KMOD_RELEASE, &(struct moe_kmod_release){.id = t.id});
}

/* Opened by root, who then is nobody special. */
static bool with_roots_device(void *arg)
{
	const int *dev = arg;

	return all_refused(*dev, 1);
}

static void test_owner(void)
{
	uint64_t *pool = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct moe_kmod_take t;
	int dev;

	ok(chown(MOE_KMOD_DEVICE, SOMEBODY, SOMEBODY) == 0 && chmod(MOE_KMOD_DEVICE, 0666) == 0, "a node of its own");
	ok(as_user(SOMEBODY, an_owner, pool), "the node's owner adopts without a capability");
	ok(!as_user(SOMEBODY_ELSE, the_next_owner, pool), "another user does not get it back");
	ok(chown(MOE_KMOD_DEVICE, SOMEBODY_ELSE, SOMEBODY) == 0 && as_user(SOMEBODY_ELSE, another_owner, pool),
	   "nor a user who has become the node's owner");
	ok(chown(MOE_KMOD_DEVICE, SOMEBODY, SOMEBODY) == 0 && as_user(SOMEBODY, the_next_owner, pool),
	   "another process of its owner gets it back and releases it");
	ok(as_user(SOMEBODY, an_owner, pool), "once more");
	dev = device_open();
	t = (struct moe_kmod_take){.id = *pool};
	ok(ioctl(dev, MOE_KMOD_TAKE, &t) == 0 && pool_is(t.fd, 1, 5), "an administrator gets it");
	close(t.fd);
	ok(pool_release(dev, *pool) == 0, "and releases it");
	close(dev);
	munmap(pool, 4096);
	chown(MOE_KMOD_DEVICE, 0, 0);
}

/* In a process that got an open device from another. */
static bool is_useless(int dev)
{
	struct moe_kmod_event event;
	struct pollfd p = {.fd = dev, .events = POLLIN};

	return refused(dev, MOE_KMOD_FEATURES, &(struct moe_kmod_features){0}) && all_refused(dev, 1) &&
	       refused(dev, MOE_KMOD_LEASE, &(struct moe_kmod_lease){.pool = 1}) &&
	       refused(dev, MOE_KMOD_SUBMIT, &(struct moe_kmod_request){.queue = 1}) &&
	       refused(dev, MOE_KMOD_REAP, &(struct moe_kmod_reap){0}) &&
	       refused(dev, MOE_KMOD_FETCH, &(struct moe_kmod_tag){.queue = 1}) &&
	       read(dev, &event, sizeof event) < 0 && errno == EPERM && poll(&p, 1, 0) == 1 && p.revents == POLLERR;
}

static int receive(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec io = {&byte, 1};
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;

	if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

static bool pass(int socket, int fd)
{
	char byte = 'd', control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec io = {&byte, 1};
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	return sendmsg(socket, &m, 0) == 1;
}

static void test_passed(void)
{
	int pair[2], status = -1, dev;
	pid_t pid;

	socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(is_useless(receive(pair[1])) ? 0 : 1);
	dev = device_open();
	ok(pass(pair[0], dev) && waitpid(pid, &status, 0) == pid && status == 0,
	   "an open device that was passed on is of no use, to root neither");
	fflush(stdout);
	pid = fork();
	if (pid == 0)
		_exit(is_useless(dev) ? 0 : 1);
	ok(waitpid(pid, &status, 0) == pid && status == 0, "nor is one that was inherited");
	ok(as_user(SOMEBODY, with_roots_device, &dev), "nor is it with another user");
	ok(ioctl(dev, MOE_KMOD_FEATURES, &(struct moe_kmod_features){0}) == 0, "its opener goes on using it");
	close(dev);
	close(pair[0]);
	close(pair[1]);
}

/* It watched, and an event waits. */
static bool reads_nothing(int dev)
{
	struct moe_kmod_event event;
	struct pollfd p = {.fd = dev, .events = POLLIN};

	return read(dev, &event, sizeof event) < 0 && errno == EPERM && poll(&p, 1, 0) == 1 && p.revents == POLLERR;
}

/* The same process, which gave its rights up after it had opened the device. */
static bool test_rights_given_up(uint64_t pool)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int dev = device_open(), other = device_open();
		struct moe_kmod_features f = {0};

		if (ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) < 0 || !lease_new(other, pool, 1))
			_exit(3);
		close(other);
		if (setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
			_exit(2);
		_exit(ioctl(dev, MOE_KMOD_FEATURES, &f) == 0 && f.keeper == 0 && all_refused(dev, 1) &&
				      reads_nothing(dev)
			      ? 0
			      : 1);
	}
	return waitpid(pid, &status, 0) == pid && status == 0;
}

/* The node's owner, who reads until there is an event. */
static void a_reader(void *arg)
{
	struct moe_kmod_event event;
	int dev;

	if (setresgid(SOMEBODY, SOMEBODY, SOMEBODY) < 0 || setresuid(SOMEBODY, SOMEBODY, SOMEBODY) < 0)
		_exit(2);
	dev = device_open();
	if (ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0}) < 0)
		_exit(3);
	child_ready();
	_exit(read(dev, &event, sizeof event) < 0 && errno == EPERM ? 0 : 1);
}

static void test_rights_lost(uint64_t pool)
{
	int other = device_open();
	struct child c;

	lease_new(other, pool, 1);
	chown(MOE_KMOD_DEVICE, SOMEBODY, SOMEBODY);
	c = child_start(a_reader, NULL);
	child_wait_ready(&c);
	child_go(&c);
	usleep(200000); /* it waits */
	chown(MOE_KMOD_DEVICE, 0, 0);
	close(other);
	ok(child_end(&c, 0) == 0, "who waits for events and is the keeper no more reads none");
}

void test_keepers(void)
{
	int dev = device_open();
	uint64_t pool = pool_new(dev, 1, 0, 1);

	ok(as_user(SOMEBODY, a_client, &pool) == false, "a device of root's is closed to others");
	chmod(MOE_KMOD_DEVICE, 0666);
	ok(as_user(SOMEBODY, a_client, &pool), "a client may lease, and nothing that the keeper may");
	ok(test_rights_given_up(pool), "who gives up root is no keeper any more, and reads no event that waits");
	test_rights_lost(pool);
	pool_release(dev, pool);
	close(dev);
	test_passed();
	test_owner();
}
