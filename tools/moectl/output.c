/* SPDX-License-Identifier: MIT */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Hidden, and of no kind that anybody reads. False: the name has no room. */
static bool name_fresh(struct output *o)
{
	const char *slash = strrchr(o->path, '/');
	const int folder = slash ? (int)(slash - o->path) + 1 : 0;
	const int n = snprintf(o->fresh, sizeof o->fresh, "%.*s.%.200s.%d", folder, o->path, o->path + folder,
			       getpid());

	return n > 0 && (size_t)n < sizeof o->fresh;
}

static FILE *open_fresh(struct output *o)
{
	struct stat st;
	const bool there = lstat(o->path, &st) == 0;
	int fd;

	if ((there && (!S_ISREG(st.st_mode) || access(o->path, W_OK) < 0)) || (!there && errno != ENOENT) ||
	    !name_fresh(o))
		return NULL;
	fd = open(o->fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd >= 0 && there)
		(void)fchmod(fd, st.st_mode & 0777); /* that of who may read it; a file of another's stays ours */
	return fd < 0 ? NULL : fdopen(fd, "w");
}

int output_open(struct output *ret, const char *path)
{
	*ret = (struct output){.path = path};
	if (strcmp(path, "-") == 0) {
		ret->to = stdout;
		return 0;
	}
	ret->to = open_fresh(ret);
	if (!ret->to) {
		ret->fresh[0] = '\0';
		ret->to = fopen(path, "we");
	}
	return ret->to ? 0 : -errno;
}

/* An early part was lost: who asks again is told why. What is written then is no result any more. */
static int ask_again(FILE *file)
{
	return write(fileno(file), "", 1) < 0 ? -errno : -EIO;
}

int output_end(struct output *o, int r)
{
	if (o->to == stdout)
		return r;
	/* Why, while it is known. */
	if (r == 0 && fflush(o->to) != 0)
		r = -errno;
	if (r == 0 && ferror(o->to))
		r = ask_again(o->to);
	if (fclose(o->to) != 0 && r == 0)
		r = -errno;
	if (!o->fresh[0])
		return r;
	if (r == 0 && rename(o->fresh, o->path) < 0)
		r = -errno;
	if (r < 0)
		unlink(o->fresh);
	return r;
}
