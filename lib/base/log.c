/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/util.h"

#define JOURNAL "/run/systemd/journal/socket"
#define LINE_BYTES 2048
#define DATAGRAM_BYTES 8192
#define TRIES 10 /* of an error or a warning, a millisecond each, where there is no room for it */

static const char *log_program = "moe";
static enum log_level log_max = LOG_LEVEL_INFO;
static bool log_marks;      /* stderr is the journal: "<N>" before what goes there */
static int log_socket = -1; /* to the journal's own */
static struct sockaddr_un log_journal;

/* -- the journal -------------------------------------------------------------------------------------------------- */

/* JOURNAL_STREAM is DEVICE:INODE of what stderr was when the service manager started us. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == device && st.st_ino == inode;
}

void log_open_journal(const char *path)
{
	log_marks = path != NULL;
	log_socket = close_fd(log_socket);
	if (!path)
		return;
	log_journal = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(log_journal.sun_path, sizeof log_journal.sun_path, "%s", path);
	log_socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

void log_open(const char *program, enum log_level level)
{
	log_program = program;
	log_max = level;
	if (!log_marks && stderr_is_journal())
		log_open_journal(JOURNAL);
}

/* A line as it is sent. */
struct words {
	size_t used;
	char bytes[DATAGRAM_BYTES];
};

/* NAME=value, or with a length before it, which a value of several lines needs. Left out where it has no room. */
static void add_field(struct words *w, const char *name, const char *value)
{
	const size_t n = strlen(name), m = strlen(value);
	const uint64_t length = htole64(m);
	const bool lines = strchr(value, '\n') != NULL;
	char *to = w->bytes + w->used;

	if (n + m + sizeof length + 2 > sizeof w->bytes - w->used)
		return;
	memcpy(to, name, n);
	to += n;
	*to++ = lines ? '\n' : '=';
	if (lines) {
		memcpy(to, &length, sizeof length);
		to += sizeof length;
	}
	memcpy(to, value, m);
	to += m;
	*to++ = '\n';
	w->used = (size_t)(to - w->bytes);
}

static void form_datagram(struct words *w, enum log_level level, const char *message)
{
	w->used = 0;
	add_field(w, "PRIORITY", (const char[]){(char)('0' + level), '\0'});
	add_field(w, "SYSLOG_IDENTIFIER", log_program);
	add_field(w, "MESSAGE", message);
}

/* By its name each time: a journal that has started anew has another. */
static int send_datagram(const struct words *w)
{
	if (sendto(log_socket, w->bytes, w->used, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&log_journal,
		   sizeof log_journal) >= 0)
		return 0;
	return -errno;
}

/* -- stderr ------------------------------------------------------------------------------------------------------- */

static const char *level_word(enum log_level level)
{
	switch (level) {
	case LOG_LEVEL_ERR:
		return "error: ";
	case LOG_LEVEL_WARNING:
		return "warning: ";
	default:
		return "";
	}
}

static void form_line(struct words *w, enum log_level level, const char *message)
{
	const size_t most = LINE_BYTES + 64; /* below PIPE_BUF: whole, or not at all */
	int used;

	if (log_marks)
		used = snprintf(w->bytes, most - 1, "<%d>%s", level, message);
	else
		used = snprintf(w->bytes, most - 1, "%s: %s%s", log_program, level_word(level), message);
	w->used = MIN((size_t)used, most - 2);
	w->bytes[w->used++] = '\n';
}

/* stderr is others' too, so that O_NONBLOCK is not ours to set. Pipes know RWF_NOWAIT since Linux 6.4; before that, and
 * on a terminal, another process may take the room that was seen. */
static int write_line(const struct words *w)
{
	const struct iovec iov = {(void *)w->bytes, w->used};
	struct pollfd pollfd = {.fd = STDERR_FILENO, .events = POLLOUT};

	if (pwritev2(STDERR_FILENO, &iov, 1, -1, RWF_NOWAIT) >= 0)
		return 0;
	if (errno == EINTR || errno == EBADF || errno == EPIPE)
		return -errno;
	if (poll(&pollfd, 1, 0) == 0)
		return -EAGAIN;
	return write(STDERR_FILENO, w->bytes, w->used) < 0 ? -errno : 0;
}

/* -- where there is no room --------------------------------------------------------------------------------------- */

static struct sink {
	void (*form)(struct words *w, enum log_level level, const char *message);
	int (*put)(const struct words *w); /* 0 or -errno; -EAGAIN: it is full */
	const char *why;
	_Atomic uint64_t lost; /* lines */
} log_to_journal = {form_datagram, send_datagram, "the journal took no more", 0},
  log_to_stderr = {form_line, write_line, "nobody read what stderr was told", 0};

/* What was dropped before is told first, or it is dropped as well. */
static int tell_lost(struct sink *sink)
{
	const uint64_t lost = atomic_exchange(&sink->lost, 0);
	struct words w;
	char message[128];
	int r;

	if (lost == 0)
		return 0;
	snprintf(message, sizeof message, "%llu lines are missing here: %s", (unsigned long long)lost, sink->why);
	sink->form(&w, LOG_LEVEL_WARNING, message);
	r = sink->put(&w);
	if (r < 0)
		atomic_fetch_add(&sink->lost, lost);
	return r;
}

/* False: there is nobody. Where it is only full the line is counted, and that is all. */
static bool tell(struct sink *sink, const struct words *w, enum log_level level)
{
	/* Who has lost lines already waits no more. */
	int tries = level <= LOG_LEVEL_WARNING && atomic_load(&sink->lost) == 0 ? TRIES : 1, r;

	do {
		r = tell_lost(sink);
		r = r < 0 ? r : sink->put(w);
		if (r == -EAGAIN && --tries > 0)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	} while (r == -EINTR || (r == -EAGAIN && tries > 0));
	if (r == -EAGAIN)
		atomic_fetch_add(&sink->lost, 1);
	return r == 0 || r == -EAGAIN;
}

static void tell_stderr(enum log_level level, const char *message)
{
	struct words w;

	form_line(&w, level, message);
	tell(&log_to_stderr, &w, level);
}

/* -- both --------------------------------------------------------------------------------------------------------- */

void log_line(enum log_level level, const char *format, ...)
{
	char message[LINE_BYTES];
	va_list args;

	if (level > log_max)
		return;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	if (log_socket >= 0) {
		struct words w;

		form_datagram(&w, level, message);
		if (tell(&log_to_journal, &w, level))
			return;
	}
	tell_stderr(level, message);
}

void log_fields(enum log_level level, const char *message_id, const struct log_field *fields, unsigned n,
		const char *message)
{
	if (log_socket >= 0) {
		struct words w;

		form_datagram(&w, level, message);
		add_field(&w, "MESSAGE_ID", message_id);
		for (unsigned i = 0; i < n; i++)
			add_field(&w, fields[i].name, fields[i].value);
		if (tell(&log_to_journal, &w, level))
			return;
	}
	if (level <= log_max)
		tell_stderr(level, message);
}
