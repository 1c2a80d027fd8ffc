/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/util.h"

#define JOURNAL "/run/systemd/journal/socket"
#define LINE_BYTES 2048
#define DATAGRAM_BYTES 8192
#define TRIES 10 /* of an error or a warning, a millisecond each, where the journal's queue is full */

static const char *log_program = "moe";
static enum log_level log_max = LOG_LEVEL_INFO;
static bool log_marks;      /* stderr is the journal: "<N>" before what goes there */
static int log_socket = -1; /* to the journal's own */
static struct sockaddr_un log_journal;
static _Atomic uint64_t log_lost; /* lines that the journal did not take */

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

struct datagram {
	size_t used;
	char bytes[DATAGRAM_BYTES];
};

/* NAME=value, or with a length before it, which a value of several lines needs. Left out where it has no room. */
static void add_field(struct datagram *d, const char *name, const char *value)
{
	const size_t n = strlen(name), m = strlen(value);
	const uint64_t length = htole64(m);
	const bool lines = strchr(value, '\n') != NULL;
	char *to = d->bytes + d->used;

	if (n + m + sizeof length + 2 > sizeof d->bytes - d->used)
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
	d->used = (size_t)(to - d->bytes);
}

static void begin(struct datagram *d, enum log_level level, const char *message)
{
	d->used = 0;
	add_field(d, "PRIORITY", (const char[]){(char)('0' + level), '\0'});
	add_field(d, "SYSLOG_IDENTIFIER", log_program);
	add_field(d, "MESSAGE", message);
}

/* 0 or -errno; -EAGAIN: its queue is full. By its name each time: a journal that has started anew has another. */
static int try_send(const struct datagram *d)
{
	if (sendto(log_socket, d->bytes, d->used, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&log_journal,
		   sizeof log_journal) >= 0)
		return 0;
	return -errno;
}

/* What was dropped before is told first, or it is dropped as well. */
static int tell_lost(void)
{
	const uint64_t lost = atomic_exchange(&log_lost, 0);
	struct datagram d;
	char message[128];
	int r;

	if (lost == 0)
		return 0;
	snprintf(message, sizeof message, "%llu lines are missing here: the journal took no more",
		 (unsigned long long)lost);
	begin(&d, LOG_LEVEL_WARNING, message);
	r = try_send(&d);
	if (r < 0)
		atomic_fetch_add(&log_lost, lost);
	return r;
}

/* False: there is no journal. Where it is only full the line is counted, and that is all. */
static bool send_line(const struct datagram *d, enum log_level level)
{
	/* Who has lost lines already waits no more. */
	int tries = level <= LOG_LEVEL_WARNING && atomic_load(&log_lost) == 0 ? TRIES : 1, r;

	do {
		r = tell_lost();
		r = r < 0 ? r : try_send(d);
		if (r == -EAGAIN && --tries > 0)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	} while (r == -EINTR || (r == -EAGAIN && tries > 0));
	if (r == -EAGAIN)
		atomic_fetch_add(&log_lost, 1);
	return r == 0 || r == -EAGAIN;
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

static void write_line(enum log_level level, const char *message)
{
	char line[LINE_BYTES + 64];
	int used;

	if (log_marks)
		used = snprintf(line, sizeof line - 1, "<%d>%s", level, message);
	else
		used = snprintf(line, sizeof line - 1, "%s: %s%s", log_program, level_word(level), message);
	used = MIN(used, (int)sizeof line - 2);
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)used) < 0)
		return; /* nowhere left to say it */
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
		struct datagram d;

		begin(&d, level, message);
		if (send_line(&d, level))
			return;
	}
	write_line(level, message);
}

void log_fields(enum log_level level, const char *message_id, const struct log_field *fields, unsigned n,
		const char *message)
{
	if (log_socket >= 0) {
		struct datagram d;

		begin(&d, level, message);
		add_field(&d, "MESSAGE_ID", message_id);
		for (unsigned i = 0; i < n; i++)
			add_field(&d, fields[i].name, fields[i].value);
		if (send_line(&d, level))
			return;
	}
	if (level <= log_max)
		write_line(level, message);
}
