/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/progress.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"

#define FIRST_NS 2000000000u     /* what is done by then needs no line */
#define PRINT_NS 1000000000u     /* between lines that overwrite each other on a terminal */
#define PRINT_LOG_NS 5000000000u /* between lines of a log */

struct progress progress_start(bool wanted, uint64_t total)
{
	return (struct progress){.shown = wanted, .total = total, .started_ns = now_ns()};
}

static void print(const struct progress *p, double seconds, bool terminal)
{
	const bool large = p->total >= 10000000000u;
	const double unit = large ? 1e9 : 1e6, rate = seconds > 0 ? (double)p->done / seconds : 0;

	fprintf(stderr, "%smoe-mkmodel: %3.0f %%  %.1f of %.1f %s  %.1f MB/s  ETA %.0f s%s", terminal ? "\r" : "",
		100.0 * (double)p->done / (double)p->total, (double)p->done / unit, (double)p->total / unit,
		large ? "GB" : "MB", rate * 1e-6, rate > 0 ? (double)(p->total - p->done) / rate : 0,
		terminal && p->done < p->total ? "  " : "\n");
}

void progress_add(struct progress *p, uint64_t bytes)
{
	const uint64_t now = now_ns();
	bool terminal;

	p->done += bytes;
	if (!p->shown || now - p->started_ns < FIRST_NS)
		return;
	terminal = isatty(STDERR_FILENO);
	if (now - p->printed_ns < (terminal ? PRINT_NS : PRINT_LOG_NS) && p->done < p->total)
		return;
	print(p, (double)(now - p->started_ns) * 1e-9, terminal);
	p->printed_ns = now;
}

int progress_write(struct progress *progress, int fd, const char *path, const void *data, size_t bytes,
		   struct moe_error *err)
{
	const char *at = data;

	for (size_t left = bytes; left;) {
		ssize_t n = write(fd, at, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return moe_error_sys(err, -errno, "%s", path);
		at += n;
		left -= (size_t)n;
	}
	progress_add(progress, bytes);
	return 0;
}
