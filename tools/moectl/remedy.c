/* SPDX-License-Identifier: MIT */
#include "remedy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/small.h"

struct remedy *remedies_add(struct remedies *all, const char *check, const char *root, const char *format, ...)
{
	struct remedy *r = &all->list[all->n];
	size_t used;
	va_list args;
	int more;

	if (all->n == REMEDIES_MAX)
		return NULL;
	*r = (struct remedy){.check = ""};
	snprintf(r->check, sizeof r->check, "%s", check);
	used = (size_t)snprintf(r->path, sizeof r->path, "%s", root);
	if (used >= sizeof r->path)
		return NULL;
	r->root_bytes = used;
	va_start(args, format);
	more = vsnprintf(r->path + used, sizeof r->path - used, format, args);
	va_end(args);
	if (more < 0 || (size_t)more >= sizeof r->path - used)
		return NULL;
	all->n++;
	return r;
}

bool remedy_is_there(const struct remedy *remedy)
{
	char now[sizeof remedy->text + 1]; /* a longer one differs */

	return small_read(remedy->path, now, sizeof now) && strcmp(now, remedy->text) == 0;
}

/* -- writing ------------------------------------------------------------------------------------------------------ */

static int open_below(int root, const char *path)
{
	const struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};
	const long fd = syscall(SYS_openat2, root, path, &how, sizeof how);

	return fd < 0 ? -errno : (int)fd;
}

/* The folder `path` below the root, whose last component is `name` in `above`; made if need be. */
static int make_folder(int root, int above, const char *path, const char *name)
{
	const int fd = open_below(root, path);

	if (fd != -ENOENT)
		return fd;
	return mkdirat(above, name, 0755) < 0 && errno != EEXIST ? -errno : open_below(root, path);
}

/* The folder of the remedy's file, made if need be; its descriptor or -errno. */
static int open_folder(const struct remedy *remedy, struct moe_error *err)
{
	_cleanup_close_ int root = -1, at = -1;
	char folder[PATH_MAX], *below = folder + remedy->root_bytes;

	snprintf(folder, sizeof folder, "%s", remedy->path);
	*below = '\0';
	root = open(*folder ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return moe_error_sys(err, -errno, "%s", folder);
	*below = '/';
	at = open_below(root, "/");
	/* Each beginning of it that ends before a slash. */
	for (char *name = below + 1, *slash; at >= 0 && (slash = strchr(name, '/')); name = slash + 1) {
		int next;

		*slash = '\0';
		next = make_folder(root, at, below, name);
		close_fd(at);
		at = next;
		if (at < 0)
			break;
		*slash = '/';
	}
	return at < 0 ? moe_error_sys(err, at, "%s", folder) : steal_fd(&at);
}

/* All of it, on the disk, for everybody to read. */
static int fill(int fd, const char *text)
{
	size_t left = strlen(text);

	while (left > 0) {
		const ssize_t n = write(fd, text, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		left -= (size_t)n;
	}
	return fchmod(fd, 0644) < 0 || fsync(fd) < 0 ? -errno : 0;
}

int remedy_write(const struct remedy *remedy, struct moe_error *err)
{
	const char *name = strrchr(remedy->path, '/') + 1;
	_cleanup_close_ int folder = open_folder(remedy, err);
	_cleanup_close_ int fd = -1;
	char fresh[NAME_MAX + 1];
	int r;

	if (folder < 0)
		return folder;
	/* Hidden, and of no kind that anybody reads. */
	snprintf(fresh, sizeof fresh, ".%.200s.%d", name, getpid());
	unlinkat(folder, fresh, 0);
	fd = openat(folder, fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return moe_error_sys(err, -errno, "%s", remedy->path);
	r = fill(fd, remedy->text);
	if (r == 0 && renameat(folder, fresh, folder, name) < 0)
		r = -errno;
	if (r == 0 && fsync(folder) < 0)
		r = -errno;
	if (r < 0) {
		unlinkat(folder, fresh, 0);
		return moe_error_sys(err, r, "%s", remedy->path);
	}
	return 0;
}

/* -- asking ------------------------------------------------------------------------------------------------------- */

static void show_text(const char *before, const char *text)
{
	while (*text) {
		const size_t n = strcspn(text, "\n");

		printf("%s%.*s\n", before, (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static void show(const struct remedy *r)
{
	char now[4096];

	printf("\n%s, for: %s\n", r->path, r->check);
	show_text("  | ", r->text);
	if (small_read(r->path, now, sizeof now)) {
		printf("  instead of what it says now:\n");
		show_text("  < ", now);
	}
}

/* y or yes; everything else, and the end of the input, is no. */
static bool allowed(void)
{
	char answer[64];

	printf("Write it? [y/N] ");
	fflush(stdout);
	if (!fgets(answer, sizeof answer, stdin)) {
		printf("\n");
		return false;
	}
	answer[strcspn(answer, "\n")] = '\0';
	return strcmp(answer, "y") == 0 || strcmp(answer, "Y") == 0 || strcmp(answer, "yes") == 0;
}

unsigned remedies_offer(const struct remedies *all, bool yes)
{
	unsigned failed = 0;

	if (all->n == 0)
		printf("\nNothing that a file could mend.\n");
	for (unsigned i = 0; i < all->n; i++) {
		const struct remedy *r = &all->list[i];
		struct moe_error err = {0};

		if (remedy_is_there(r)) {
			printf("\n%s, for: %s: is there already. Type: %s\n", r->path, r->check, r->next);
			continue;
		}
		show(r);
		if (!yes && !allowed()) {
			printf("Left as it is.\n");
			continue;
		}
		if (remedy_write(r, &err) < 0) {
			fflush(stdout);
			fprintf(stderr, "moectl: %s%s\n", err.text, geteuid() ? "; only root may do that" : "");
			failed++;
			continue;
		}
		printf("Written. Now type: %s\n", r->next);
	}
	return failed;
}
