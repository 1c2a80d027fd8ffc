/* SPDX-License-Identifier: MIT */
/*
 * log - lines to stderr, or to systemd's journal with fields.
 *
 * Where stderr is the journal (JOURNAL_STREAM names what it is) each line goes to the journal's own socket, by the
 * protocol of systemd.io/JOURNAL_NATIVE_PROTOCOL, so that it can have fields; when that socket is gone, to stderr with
 * the priority before it as "<N>". On a terminal or in a file the program's name and the level stand before it.
 *
 * Law: nobody waits for whoever reads: the journal, or the other end of a pipe, as a container's engine that has
 * stopped reading. Where there is no room an error or a warning costs 10 ms once and everything else nothing; then
 * lines are dropped, and the next one that is taken is preceded by how many. Thread-safe: one line is one system call.
 * A library must not log: libmoe-expert never calls this.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level {
	LOG_LEVEL_ERR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_NOTICE = 5,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7
};

struct log_field {
	const char *name; /* capitals, digits and _, as the journal wants it */
	const char *value;
};

/* `program` must outlive all calls; lines above `level` are dropped. May be called again for another level. */
void log_open(const char *program, enum log_level level);
/* As if stderr were the journal, which listens there: for tests. NULL: it is not. */
void log_open_journal(const char *path);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line with fields. The journal gets it whatever its level: its readers choose. `message_id`: 32 hexadecimal
 * digits. */
void log_fields(enum log_level level, const char *message_id, const struct log_field *fields, unsigned n,
		const char *message);

#define log_err(...) log_line(LOG_LEVEL_ERR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...) log_line(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
