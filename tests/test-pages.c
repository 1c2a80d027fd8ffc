/* SPDX-License-Identifier: MIT */
/* pages: every rung that this machine gives, what is refused and how, what is sealed, and that nothing leaks. */
#include "daemon/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "daemon/prefault.h"
#include "daemon/room.h"
#include "tests/leaks.h"
#include "tests/tap.h"

#define MIB (1ull << 20)
#define TURNS 16
#define FILES_MAX 32
#define ADVICE_COLLAPSE 25
#define ADVICE_POPULATE_WRITE 23

static struct host *host;
static struct host_node *node;

static void test_names(void)
{
	int want = 7;
	bool good = true;

	for (int rung = 0; rung < PAGES_RUNGS; rung++)
		good &= pages_rung_from_name(pages_rung_name((enum pages_rung)rung), &want) == 0 && want == rung;
	ok(good, "each rung's name names the rung");
	ok(pages_rung_from_name("auto", &want) == 0 && want == PAGES_AUTO, "auto is a name");
	ok(pages_rung_from_name("3g", &want) == -EINVAL && want == PAGES_AUTO, "3g is not, and changes nothing");
}

static bool all_zero(const struct pages *p)
{
	const uint64_t *words = p->map;
	uint64_t any = 0;

	for (uint64_t i = 0; i < p->bytes / 8; i++)
		any |= words[i];
	return any == 0;
}

static void check_published(struct pages *p, bool writable)
{
	const char *rung = pages_rung_name(p->rung);
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (writable ? 0 : F_SEAL_WRITE);
	const uint8_t *bytes = p->map;
	void *again;

	ok(bytes && bytes[0] == 1 && bytes[p->bytes - 1] == 2 && bytes[p->bytes / 2] == 3,
	   "%s: published content is what was written", rung);
	ok((uintptr_t)p->map % pages_rung_bytes(p->rung) == 0, "%s: mapped on a page boundary of the rung", rung);
	ok(fcntl(p->fd, F_GET_SEALS) == seals || fcntl(p->fd, F_GET_SEALS) == (seals | 0x20 /* exec */),
	   "%s: seals 0x%x", rung, (unsigned)fcntl(p->fd, F_GET_SEALS));
	again = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	ok(writable ? again != MAP_FAILED : again == MAP_FAILED && errno == EPERM, "%s: writable mapping %s", rung,
	   writable ? "granted" : "refused");
	if (again != MAP_FAILED)
		munmap(again, p->bytes);
	ok(ftruncate(p->fd, 0) < 0 && ftruncate(p->fd, (off_t)p->bytes * 2) < 0, "%s: the size is sealed", rung);
	if (!writable)
		ok(mprotect(p->map, p->bytes, PROT_READ | PROT_WRITE) < 0, "%s: our own mapping stays read-only", rung);
}

static void test_rung(enum pages_rung rung, bool writable)
{
	const uint64_t bytes = rung == PAGES_1G ? 1 : 5 * MIB + 1;
	struct pages p = PAGES_NONE;
	struct moe_error err;
	int r = pages_new(&p, "test", bytes, (int)rung, node, &err);

	if (r == -ENOMEM && rung != PAGES_4K) {
		ok(p.fd == -1 && p.map == NULL && (rung == PAGES_THP || strstr(err.text, "hugepages") != NULL),
		   "%s: refused, outputs untouched: %s", pages_rung_name(rung), err.text);
		tap_skip("%s pages: %s", pages_rung_name(rung), err.text);
		return;
	}
	require(r == 0, "%s: made%s%s", pages_rung_name(rung), r ? ": " : "", r ? err.text : "");
	ok(p.rung == rung && p.bytes == ALIGN_UP(bytes, pages_rung_bytes(rung)) && p.node == node->id,
	   "%s: %llu bytes on node %d", pages_rung_name(rung), (unsigned long long)p.bytes, p.node);
	ok(rung == PAGES_4K || p.huge_bytes >= p.bytes / 10 * 9, "%s: %llu bytes on huge pages", pages_rung_name(rung),
	   (unsigned long long)p.huge_bytes);
	ok((uintptr_t)p.map % pages_rung_bytes(rung) == 0 && all_zero(&p), "%s: aligned and zeroed",
	   pages_rung_name(rung));
	if (rung == PAGES_THP || rung == PAGES_4K)
		ok(node->huge_2m_total < 0 ||
			   !strstr(p.better, "hugepages-2048kB") == (room_check(PAGES_2M, bytes, node, NULL) == 0),
		   "%s: better is: %s", pages_rung_name(rung), p.better);
	((uint8_t *)p.map)[0] = 1;
	((uint8_t *)p.map)[p.bytes - 1] = 2;
	((uint8_t *)p.map)[p.bytes / 2] = 3;
	r = pages_publish(&p, writable, &err);
	if (ok(r == 0, "%s: published%s%s", pages_rung_name(rung), r ? ": " : "", r ? err.text : ""))
		check_published(&p, writable);
	pages_free(&p);
	ok(p.fd == -1 && p.map == NULL, "%s: freed", pages_rung_name(rung));
}

static void test_auto(void)
{
	struct pages p = PAGES_NONE;
	struct moe_error err;

	require(pages_new(&p, "test", 3 * MIB, PAGES_AUTO, node, &err) == 0, "auto finds a rung");
	ok(p.rung != PAGES_1G, "auto: 3 MiB lie on %s pages, not on 1 GiB ones", pages_rung_name(p.rung));
	pages_free(&p);
}

static void test_nodes(void)
{
	for (uint32_t i = 0; i < host->n_nodes; i++) {
		const int id = host->nodes[i].id;
		struct pages p = PAGES_NONE;
		struct moe_error err = {0};

		if (!ok(pages_new(&p, "test", 9 * MIB, PAGES_4K, &host->nodes[i], &err) == 0, "memory of node %d", id))
			continue;
		ok(prefault_check_node(p.map, p.bytes, id, &err) == 0, "its pages lie there");
		if (syscall(SYS_move_pages, 0, 0ul, NULL, NULL, NULL, 0) < 0)
			tap_skip("the kernel does not say where pages lie");
		else
			ok(prefault_check_node(p.map, p.bytes, id + 1, &err) == -EXDEV, "and nowhere else: %s",
			   err.text);
		pages_free(&p);
	}
}

static void test_publish_refused(void)
{
	struct pages p = PAGES_NONE;
	struct moe_error err;
	void *other;

	require(pages_new(&p, "test", MIB, PAGES_4K, node, &err) == 0, "a file to publish");
	other = mmap(NULL, p.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	require(other != MAP_FAILED, "somebody else maps it writable");
	ok(pages_publish(&p, false, &err) == -EBUSY && p.map == NULL, "publishing refuses: %s", err.text);
	pages_free(&p);
	munmap(other, MIB);
}

/* -- used while it is made -----------------------------------------------------------------------------------------*/

#define NEEDERS 4

struct needer {
	pthread_t thread;
	struct prefault_run *rest;
	struct pages *pages;
	uint32_t first;
	bool good;
};

/* Writes where it was told that memory is there: from the end to the beginning, against the threads' order. */
static void *need_all(void *argument)
{
	struct needer *n = argument;

	n->good = true;
	for (uint64_t end = n->pages->bytes; end > 0; end -= MIB) {
		const uint64_t at = end - MIB + n->first;

		n->good &= prefault_need(n->rest, at, MIB - n->first) == 0;
		((volatile uint8_t *)n->pages->map)[at] = (uint8_t)(1 + n->first);
	}
	return NULL;
}

static void test_used_meanwhile(void)
{
	struct needer needers[NEEDERS];
	struct prefault_run *rest;
	struct pages p = PAGES_NONE;
	struct moe_error err;
	bool good = true;

	require(pages_begin(&p, &rest, "test", 64 * MIB, PAGES_AUTO, PAGES_1G, node, &err) == 0, "a file has begun");
	for (uint32_t i = 0; i < NEEDERS; i++) {
		needers[i] = (struct needer){.rest = rest, .pages = &p, .first = i};
		pthread_create(&needers[i].thread, NULL, need_all, &needers[i]);
	}
	for (uint32_t i = 0; i < NEEDERS; i++) {
		pthread_join(needers[i].thread, NULL);
		good &= needers[i].good;
	}
	ok(good, "what is needed is there");
	ok(pages_end(&p, rest, PAGES_AUTO, NULL, NULL, &err) == 0, "then the rest");
	for (uint64_t at = 0; at < p.bytes; at += MIB)
		for (uint32_t i = 0; i < NEEDERS; i++)
			good &= ((uint8_t *)p.map)[at + i] == 1 + i;
	ok(good, "and what was written has stayed");
	pages_free(&p);
}

/* -- too much -------------------------------------------------------------------------------------------------------*/

static void check_refused(uint64_t bytes, int want, int code)
{
	const char *name = want == PAGES_AUTO ? "auto" : pages_rung_name((enum pages_rung)want);
	struct pages p = {.fd = 99};
	struct moe_error err;
	struct rusage before, after;
	int r;

	getrusage(RUSAGE_SELF, &before);
	r = pages_new(&p, "test", bytes, want, node, &err);
	getrusage(RUSAGE_SELF, &after);
	ok(r == code && err.code == code && p.fd == 99, "%s, %llu GiB: %s", name, (unsigned long long)(bytes >> 30),
	   err.text);
	ok(after.ru_minflt - before.ru_minflt < 500, "%s: memory was not touched", name);
}

/* More than the node has is no matter of its reserve. */
static void test_beyond(enum pages_rung rung)
{
	struct host_node now = {.id = node->id};
	struct moe_error err = {0};
	char command[192] = "";
	uint64_t bytes;

	host_read_node_memory(&now);
	if (now.mem_total < 0 || (rung == PAGES_1G ? now.huge_1g_total : now.huge_2m_total) < 0) {
		tap_skip("%s pages beyond the node: neither are known here", pages_rung_name(rung));
		return;
	}
	bytes = ALIGN_UP((uint64_t)now.mem_total + 1, pages_rung_bytes(rung));
	room_command(command, sizeof command, rung, bytes, node);
	ok(!command[0] && room_check(rung, bytes, node, &err) == -ENOMEM && strstr(err.text, "a smaller model") &&
		   !strstr(err.text, "nr_hugepages"),
	   "%s pages of all memory and more: no reserve is advised: %s", pages_rung_name(rung), err.text);
	room_command(command, sizeof command, rung, pages_rung_bytes(rung), node);
	ok(room_check(rung, pages_rung_bytes(rung), node, NULL) == 0 || strstr(command, "nr_hugepages"),
	   "%s pages, one: %s", pages_rung_name(rung), command);
}

static void test_too_much(void)
{
	const struct host_node nowhere = {.id = 9999}; /* nobody knows what it has */
	struct moe_error err;

	test_beyond(PAGES_2M);
	test_beyond(PAGES_1G);
	check_refused(1ull << 45, PAGES_AUTO, -ENOMEM);
	check_refused(1ull << 45, PAGES_4K, -ENOMEM);
	check_refused(1ull << 45, PAGES_THP, -ENOMEM);
	check_refused(1ull << 45, PAGES_2M, -ENOMEM);
	check_refused(1ull << 45, PAGES_1G, -ENOMEM);
	check_refused(UINT64_MAX, PAGES_AUTO, -EINVAL);
	check_refused(0, PAGES_AUTO, -EINVAL);
	if (host->mem_available < 0)
		tap_skip("all files: without /proc nobody knows what is free");
	else
		for (int known = 0; known < 2; known++)
			ok(room_check_all((uint64_t[]){INT64_MAX / 4}, known ? node : &nowhere, 1,
					  known ? PAGES_4K : PAGES_AUTO, &err) == -ENOMEM,
			   "all files: %s", err.text);
}

/* Each file fits its node, all of them together fit no machine. */
static void test_too_many(void)
{
	struct host_node nodes[FILES_MAX];
	uint64_t bytes[FILES_MAX];
	const uint64_t each = (uint64_t)node->mem_available / 3 * 2;
	const uint64_t n = each ? (uint64_t)host->mem_available / each + 1 : 0;
	struct moe_error err;

	if (host->mem_available < 0 || node->mem_available < 3) {
		tap_skip("files that fit one by one: without /proc nobody knows what is free");
		return;
	}
	if (n > FILES_MAX) {
		tap_skip("files that fit one by one: the first node is too small a part of this machine");
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		nodes[i] = *node;
		bytes[i] = each;
	}
	ok(room_check_all(bytes, nodes, 1, PAGES_4K, &err) == 0, "one file fits");
	ok(room_check_all(bytes, nodes, (uint32_t)n, PAGES_4K, &err) == -ENOMEM, "%llu that fit one by one: %s",
	   (unsigned long long)n, err.text);
}

/* -- failures, in children whose system calls or limits fail -------------------------------------------------------*/

/* `advice` -1: any; else only the madvise with this advice. */
static bool forbid(int call, int advice, int error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)advice, 0, advice < 0 ? 0 : 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = ARRAY_LEN(filter), .filter = filter};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Runs in a child: `expected` from every turn (0: any success), the rung where one is given, and no leak. */
static int turns(int want, int expected, int rung)
{
	struct leaks before;
	struct moe_error err = {0};

	for (int i = -1; i < TURNS; i++) { /* the first is a warm-up: threads and stdio take what they keep */
		struct pages p = PAGES_NONE;
		const int r = pages_new(&p, "test", 6 * MIB, want, node, &err);

		if (r != expected) {
			printf("# got %d: %s\n", r, err.text);
			return 1;
		}
		if (r == 0 && rung >= 0 && p.rung != (enum pages_rung)rung)
			return 2;
		pages_free(&p);
		if (i < 0)
			before = leaks_now();
	}
	if (expected)
		printf("# %s\n", err.text);
	return leaks_none(&before, TURNS) ? 0 : 3;
}

static void check_child(int (*run)(void), const char *what)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		const int r = run();

		fflush(stdout);
		_exit(r);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		tap_skip("%s: not permitted to set it up here", what);
	else
		ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s (status 0x%x)", what, (unsigned)status);
}

static int no_failure(void)
{
	return turns(PAGES_AUTO, 0, -1);
}

static int no_populate(void)
{
	return forbid(SYS_madvise, ADVICE_POPULATE_WRITE, ENOMEM) ? turns(PAGES_AUTO, -ENOMEM, -1) : 77;
}

static int no_collapse(void)
{
	if (strcmp(host->thp_shmem, "never") != 0)
		return 77; /* page faults bring huge pages by themselves */
	if (!forbid(SYS_madvise, ADVICE_COLLAPSE, EINVAL))
		return 77;
	if (turns(PAGES_THP, -ENOMEM, -1))
		return 1;
	return room_check(PAGES_2M, 6 * MIB, node, NULL) == 0 ? 0 : turns(PAGES_AUTO, 0, PAGES_4K);
}

/* The kernel's memory ends when the file has begun: for threads and needers. */
static int short_meanwhile(void)
{
	struct prefault_run *rest;
	struct pages p = PAGES_NONE;
	struct moe_error err;

	if (pages_begin(&p, &rest, "test", 512 * MIB, PAGES_4K, PAGES_4K, node, &err) < 0)
		return 77;
	if (!forbid(SYS_madvise, ADVICE_POPULATE_WRITE, ENOMEM))
		return 77;
	if (prefault_need(rest, p.bytes - 1, 1) != -ENOMEM)
		return 1;
	if (pages_end(&p, rest, PAGES_4K, NULL, NULL, &err) != -ENOMEM)
		return 2;
	pages_free(&p);
	return 0;
}

static int no_mbind(void)
{
	return forbid(SYS_mbind, -1, EPERM) ? turns(PAGES_4K, 0, PAGES_4K) : 77;
}

static int no_numa(void)
{
	return forbid(SYS_mbind, -1, ENOSYS) && forbid(SYS_move_pages, -1, ENOSYS) ? turns(PAGES_4K, 0, PAGES_4K) : 77;
}

static int wrong_node(void)
{
	node->id = 1023;
	return turns(PAGES_4K, -ENOMEM, -1);
}

static int no_memfd(void)
{
	return forbid(SYS_memfd_create, -1, EMFILE) ? turns(PAGES_AUTO, -EMFILE, -1) : 77;
}

static int stop_at_once(uint64_t done, uint64_t total, void *userdata)
{
	(*(int *)userdata)++;
	return done <= total;
}

static int canceled(void)
{
	struct leaks before;
	struct moe_error err;
	int calls = 0;

	for (int i = -1; i < TURNS; i++) {
		struct pages p = {.fd = 99};

		if (pages_new_watched(&p, "test", 64 * MIB, PAGES_4K, node, stop_at_once, &calls, &err) != -ECANCELED)
			return 1;
		if (p.fd != 99 || calls != i + 2)
			return 2;
		if (i < 0)
			before = leaks_now();
	}
	return leaks_none(&before, TURNS) ? 0 : 3;
}

int main(void)
{
	host = malloc(sizeof *host);
	require(host != NULL, "memory for the host");
	host_read(host, false);
	node = &host->nodes[0];
	test_names();
	for (int rung = 0; rung < PAGES_RUNGS; rung++) {
		test_rung((enum pages_rung)rung, false);
		test_rung((enum pages_rung)rung, true);
	}
	test_auto();
	test_nodes();
	test_publish_refused();
	test_used_meanwhile();
	test_too_much();
	test_too_many();
	check_child(no_failure, "making and freeing leaks nothing");
	check_child(no_populate, "no memory while prefaulting: an error, nothing leaks");
	check_child(no_collapse, "no transparent huge pages: the rung is given back, 4k serves");
	check_child(short_meanwhile, "no memory while the file is used: an error to all");
	check_child(no_mbind, "mbind forbidden: first touch decides");
	check_child(no_numa, "a kernel without NUMA is one node");
	check_child(wrong_node, "a node that does not exist is an error");
	check_child(no_memfd, "no memfd to be had: an error, nothing leaks");
	check_child(canceled, "canceled while prefaulting: at once, nothing leaks");
	free(host);
	return tap_done();
}
