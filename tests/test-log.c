/* SPDX-License-Identifier: MIT */
/* log, events - what the journal's socket gets, and that nobody waits for a journal or a pipe that is full or gone. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/events.h"
#include "tests/forbid.h"
#include "tests/tap.h"

static char folder[TAP_TMP], path[96];

static int listen_there(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	unlink(path);
	strcpy(name.sun_path, path);
	require(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0, "a journal listens at %s", path);
	return fd;
}

/* The next datagram with NULs at its lines' ends; its length, or -1: there is none. */
static char got[16384];
static ssize_t take(int fd)
{
	const ssize_t n = recv(fd, got, sizeof got - 1, 0);

	got[n > 0 ? n : 0] = '\0';
	return n;
}

static bool has(const char *line)
{
	char whole[512];

	snprintf(whole, sizeof whole, "\n%s\n", line);
	return strncmp(got, whole + 1, strlen(line) + 1) == 0 || strstr(got, whole);
}

static void test_lines(int journal)
{
	log_warning("one of %d", 2);
	require(take(journal) > 0, "a line goes to the journal");
	ok(has("PRIORITY=4") && has("SYSLOG_IDENTIFIER=test-log") && has("MESSAGE=one of 2"),
	   "with its priority, the program and the text");
	log_debug("not asked for");
	ok(take(journal) < 0, "what is below the level does not");
	log_info("two\nlines");
	ok(take(journal) > 0 && memmem(got, sizeof got, "MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n", 26),
	   "a text of two lines goes with its length");
}

static void test_events(int journal)
{
	event_log(EVENT_ATTACHED, FACTS(.session = 7, .pid = 12, .uid = 1000, .model = "tiny", .path = "/nowhere"),
		  "session %d begins", 7);
	require(take(journal) > 0, "an event goes to the journal below the level, too");
	ok(has("MESSAGE_ID=7ac5550dde7944a18d673695c18a2072") && has("MOE_EVENT=attached") && has("PRIORITY=7"),
	   "with its id, its name and its level");
	ok(has("MOE_SESSION=7") && has("MOE_PID=12") && has("MOE_UID=1000") && has("MOE_MODEL=tiny"),
	   "and the fields of the table");
	ok(!strstr(got, "MOE_PATH"), "but no others");
	event_log(EVENT_DROPPED, FACTS(.pid = 1, .reason = "x\nMESSAGE_ID=0"), "by a client");
	ok(take(journal) > 0 && !has("MOE_REASON=x") && strstr(got, "MOE_REASON\n\x0e"),
	   "what a client has said cannot pass for a field");
	for (int i = 0; i < EVENTS; i++) {
		const struct event_def *d = &events_table[i];

		event_log((enum event)i, FACTS(.count = 1), "x");
		if (!d->name || strlen(d->id) != 32 || take(journal) < 0)
			require(false, "event %d is in the table, with an id", i);
	}
	ok(true, "each event is in the table");
}

/* Sessions that began and ended, as the journal has it: one by one, and in sums. */
static struct {
	unsigned attached, left, others;
	unsigned long more_attached, more_left;
} told;

static void count_told(int journal)
{
	while (take(journal) > 0) {
		const char *count = strstr(got, "MOE_COUNT=");

		if (has("MOE_EVENT=summed"))
			*(has("MOE_REASON=left") ? &told.more_left : &told.more_attached) += strtoul(
				count ? count + strlen("MOE_COUNT=") : "0", NULL, 10);
		else
			++*(has("MOE_EVENT=attached") ? &told.attached
			    : has("MOE_EVENT=left")   ? &told.left
						      : &told.others);
	}
}

/* What clients do without end leaves room in the journal for what matters, and is counted. */
static void test_sums(int journal)
{
	const unsigned begun = 4321, ended = EVENT_EACH + 1;

	for (unsigned i = 0; i < begun; i++) {
		event_log(EVENT_ATTACHED, FACTS(.session = i), "one more");
		if (i < ended)
			event_log(EVENT_LEFT, FACTS(.session = i), "one less");
		if (i % 1000 == 0)
			event_log(EVENT_STUCK, FACTS(.reason = "x"), "what matters");
		count_told(journal);
	}
	ok(told.others == 5, "whatever clients do the rest is told: %u of 5", told.others);
	events_tell_sums();
	count_told(journal);
	ok(told.attached < begun && told.attached + told.more_attached == begun,
	   "of %u sessions that begin %u are told one by one, %lu in sums", begun, told.attached, told.more_attached);
	ok(told.left + told.more_left == ended, "of %u that end %u, %lu", ended, told.left, told.more_left);
	event_log(EVENT_ATTACHED, FACTS(.session = 1), "one more");
	ok(take(journal) > 0 && has("MOE_EVENT=attached"), "after the sum they are told again");
	events_tell_sums();
	ok(take(journal) < 0, "and there are no sums of nothing");
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void test_full(int journal)
{
	const unsigned lines = 20000;
	const double begin = seconds();
	unsigned taken = 0;
	char expected[128];

	for (unsigned i = 0; i < lines; i++)
		log_err("line %u", i);
	ok(seconds() - begin < 20, "%u errors to a journal that reads none: %.3f s", lines, seconds() - begin);
	while (take(journal) > 0)
		taken++;
	ok(taken > 0 && taken < lines, "it had room for %u", taken);
	log_info("after it");
	snprintf(expected, sizeof expected, "MESSAGE=%u lines are missing here: the journal took no more",
		 lines - taken);
	ok(take(journal) > 0 && has(expected), "how many are missing is told");
	ok(take(journal) > 0 && has("MESSAGE=after it"), "before the next line");
	ok(take(journal) < 0, "and once");
}

/* What has come to stderr, which is a memory file meanwhile. */
static void test_gone(int journal)
{
	const int before = dup(STDERR_FILENO), memory = memfd_create("stderr", MFD_CLOEXEC);
	char text[256] = "";
	int other;

	close(journal);
	unlink(path);
	dup2(memory, STDERR_FILENO);
	log_err("is anybody there");
	event_log(EVENT_STUCK, FACTS(.reason = "x"), "nobody");
	event_log(EVENT_LEFT, FACTS(.session = 1), "quietly");
	dup2(before, STDERR_FILENO);
	ok(pread(memory, text, sizeof text - 1, 0) > 0 && strcmp(text, "<3>is anybody there\n<3>nobody\n") == 0,
	   "without a journal lines go to stderr, with their priority");
	other = listen_there();
	log_err("again");
	ok(take(other) > 0 && has("MESSAGE=again"), "the next journal gets them again");
	close(other);
	close(before);
	close(memory);
}

static void test_stream(void)
{
	const int before = dup(STDERR_FILENO), memory = memfd_create("stderr", MFD_CLOEXEC);
	char text[256] = "", stream[64];
	struct stat st;

	log_open_journal(NULL);
	fstat(memory, &st);
	snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino + 1);
	setenv("JOURNAL_STREAM", stream, 1);
	dup2(memory, STDERR_FILENO);
	log_open("test-log", LOG_LEVEL_INFO);
	log_warning("plain");
	dup2(before, STDERR_FILENO);
	ok(pread(memory, text, sizeof text - 1, 0) > 0 && strcmp(text, "test-log: warning: plain\n") == 0,
	   "JOURNAL_STREAM of something else is not ours: plain lines");
	close(before);
	close(memory);
}

/* Lines that were in a pipe; the last one is in `got`. */
static unsigned count_lines(int pipe)
{
	unsigned n = 0, used = 0;
	char byte;

	while (read(pipe, &byte, 1) == 1) {
		got[used++] = byte;
		if (byte == '\n' || used == sizeof got - 1) {
			got[used] = '\0';
			used = 0;
			n++;
		}
	}
	return n;
}

/* As a container's engine that reads no more: stderr is a pipe, and waits. */
static void test_unread(void)
{
	const int before = dup(STDERR_FILENO);
	const unsigned lines = 20000;
	const double begin = seconds();
	char expected[128];
	unsigned taken;
	int ends[2];

	require(pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0, "a pipe");
	dup2(ends[1], STDERR_FILENO);
	for (unsigned i = 0; i < lines; i++)
		log_err("line %u", i);
	dup2(before, STDERR_FILENO);
	ok(seconds() - begin < 20, "%u errors to a pipe that nobody reads: %.3f s", lines, seconds() - begin);
	taken = count_lines(ends[0]);
	ok(taken > 0 && taken < lines, "it had room for %u", taken);
	dup2(ends[1], STDERR_FILENO);
	log_info("after it");
	dup2(before, STDERR_FILENO);
	snprintf(expected, sizeof expected,
		 "test-log: warning: %u lines are missing here: nobody read what stderr was told\ntest-log: after it\n",
		 lines - taken);
	ok(read(ends[0], got, sizeof got - 1) == (ssize_t)strlen(expected) &&
		   strncmp(got, expected, strlen(expected)) == 0,
	   "how many are missing is told, before the next line");
	close(ends[0]);
	close(ends[1]);
	close(before);
}

int main(void)
{
	int journal;

	require(mkdtemp(tap_tmp(folder, "moe-test-log.XXXXXX")) != NULL, "a folder");
	snprintf(path, sizeof path, "%s/socket", folder);
	journal = listen_there();
	log_open("test-log", LOG_LEVEL_INFO);
	log_open_journal(path);
	test_lines(journal);
	test_events(journal);
	test_sums(journal);
	test_full(journal);
	test_gone(journal);
	test_stream();
	test_unread();
	if (forbid_call(SYS_pwritev2, EOPNOTSUPP)) /* as for pipes before Linux 6.4 */
		test_unread();
	else
		tap_skip("calls cannot be forbidden here");
	unlink(path);
	rmdir(folder);
	return tap_done();
}
