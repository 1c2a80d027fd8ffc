/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util.h"

static const char *log_program = "moe";
static enum log_level log_max = LOG_LEVEL_INFO;
static int log_to_journal;

void log_open(const char *program, enum log_level level)
{
	log_program = program;
	log_max = level;
	log_to_journal = getenv("JOURNAL_STREAM") != NULL;
}

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

void log_line(enum log_level level, const char *format, ...)
{
	char line[2048];
	va_list args;
	int used, more;

	if (level > log_max)
		return;
	if (log_to_journal)
		used = snprintf(line, sizeof line, "<%d>", level);
	else
		used = snprintf(line, sizeof line, "%s: %s", log_program, level_word(level));
	va_start(args, format);
	more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
	va_end(args);
	used = MIN(used + MAX(more, 0), (int)sizeof line - 2);
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)used) < 0)
		return; /* nowhere left to say it */
}
