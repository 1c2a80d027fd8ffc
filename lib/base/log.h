/* SPDX-License-Identifier: MIT */
/*
 * log - lines to stderr in the form systemd's journal understands.
 *
 * When stderr is the journal each line carries its priority as "<N>"; on a terminal the program's name and the level
 * stand before it. Thread-safe: one line is one write(2). A library must not log: libmoe-expert never calls this.
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

/* `program` must outlive all calls; lines above `level` are dropped. */
void log_open(const char *program, enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_err(...) log_line(LOG_LEVEL_ERR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...) log_line(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
