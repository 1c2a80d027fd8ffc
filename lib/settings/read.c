/* SPDX-License-Identifier: MIT */
/* read - the lines of a file: sections, KEY=VALUE, comments; and the keys that nobody knows. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "settings/settings.h"

#define BLANKS " \t\r"

/* -- who is meant ------------------------------------------------------------------------------------------------- */

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

uint32_t settings_distance(const char *a, const char *b)
{
	uint32_t row[SETTINGS_WORD_MAX];
	const uint32_t n = (uint32_t)strlen(b);

	if (n >= SETTINGS_WORD_MAX)
		return UINT32_MAX / 4;
	for (uint32_t j = 0; j <= n; j++)
		row[j] = j;
	for (uint32_t i = 0; a[i]; i++) {
		uint32_t diagonal = row[0];

		row[0] = i + 1;
		for (uint32_t j = 0; j < n; j++) {
			const uint32_t above = row[j + 1];

			row[j + 1] = MIN(MIN(above, row[j]) + 1, diagonal + (lower(a[i]) != lower(b[j])));
			diagonal = above;
		}
	}
	return row[n];
}

const struct setting_def *settings_nearest(const char *section, const char *key)
{
	const struct setting_def *best = NULL;
	uint32_t least = UINT32_MAX;

	if (strlen(key) >= SETTINGS_WORD_MAX)
		return NULL;
	for (int i = 0; i < SETTINGS; i++) {
		const struct setting_def *d = &settings_table[i];
		/* Equally near, the one of this section. */
		const uint32_t far = 2 * settings_distance(key, d->key) + (strcmp(section, d->section) != 0);

		if (far < least) {
			least = far;
			best = d;
		}
	}
	return least / 2 <= MAX(2, MAX(strlen(key), strlen(best->key)) / 3) ? best : NULL;
}

static int find_key(const char *section, const char *key)
{
	for (int i = 0; i < SETTINGS; i++)
		if (strcmp(settings_table[i].section, section) == 0 && strcmp(settings_table[i].key, key) == 0)
			return i;
	return -ENOENT;
}

/* -- lines -------------------------------------------------------------------------------------------------------- */

struct reader {
	struct settings *settings;
	const char *section; /* "" before the first; NULL: one that nobody knows */
	struct settings_from from;
};

__attribute__((format(printf, 2, 3))) static void warn(const struct reader *reader, const char *format, ...)
{
	const struct settings *s = reader->settings;
	char text[1024];
	va_list args;
	int n;

	if (!s->warn)
		return;
	n = snprintf(text, sizeof text, "%s:%u: ", reader->from.file, reader->from.line);
	va_start(args, format);
	if (n < (int)sizeof text)
		vsnprintf(text + n, sizeof text - (size_t)n, format, args);
	va_end(args);
	s->warn(text, s->userdata);
}

static void warn_of_key(const struct reader *reader, const char *key)
{
	const struct setting_def *near = settings_nearest(reader->section, key);

	if (near)
		warn(reader, "%s= is unknown in section [%s] and passed over; is %s= of [%s] meant?", key,
		     reader->section, near->key, near->section);
	else
		warn(reader, "%s= is unknown in section [%s] and passed over; expertd.conf(5) has all keys", key,
		     reader->section);
}

/* Cuts blanks off both ends. */
static char *trim(char *text)
{
	size_t n;

	text += strspn(text, BLANKS);
	n = strlen(text);
	while (n > 0 && strchr(BLANKS, text[n - 1]))
		text[--n] = '\0';
	return text;
}

static int take_section(struct reader *reader, char *line, struct moe_error *err)
{
	const size_t n = strlen(line);

	if (line[n - 1] != ']')
		return moe_error_set(err, -EINVAL, "%s:%u: %s: ']' is missing behind the section", reader->from.file,
				     reader->from.line, line);
	line[n - 1] = '\0';
	reader->section = NULL;
	for (int i = 0; i < SETTINGS && !reader->section; i++)
		if (strcmp(settings_table[i].section, line + 1) == 0)
			reader->section = settings_table[i].section;
	for (int i = 0; i < SETTINGS && !reader->section; i++) {
		if (settings_distance(line + 1, settings_table[i].section) <= 2) {
			warn(reader, "section [%s] is unknown and passed over; is [%s] meant?", line + 1,
			     settings_table[i].section);
			return 0;
		}
	}
	if (!reader->section)
		warn(reader, "section [%s] is unknown and passed over; expertd.conf(5) has all sections", line + 1);
	return 0;
}

static int take_line(struct reader *reader, char *line, struct moe_error *err)
{
	char *value;
	int which;

	line = trim(line);
	if (!*line || *line == '#' || *line == ';')
		return 0;
	if (*line == '[')
		return take_section(reader, line, err);
	value = strchr(line, '=');
	if (!value || value == line)
		return moe_error_set(err, -EINVAL, "%s:%u: %s: KEY=VALUE, [SECTION] or a comment (#) expected",
				     reader->from.file, reader->from.line, line);
	*value++ = '\0';
	line = trim(line);
	value = trim(value);
	if (!reader->section)
		return 0;
	if (!*reader->section)
		return moe_error_set(err, -EINVAL, "%s:%u: %s= before the first [SECTION]", reader->from.file,
				     reader->from.line, line);
	which = find_key(reader->section, line);
	if (which < 0) {
		warn_of_key(reader, line);
		return 0;
	}
	return settings_set(reader->settings, (enum setting)which, value, &reader->from, err);
}

int settings_parse(struct settings *s, const char *file, const char *text, size_t size, struct moe_error *err)
{
	static const char mark[] = "\xef\xbb\xbf"; /* some editors begin with it */
	struct reader reader = {.settings = s, .section = "", .from = {SETTINGS_FROM_FILE, file, 0}};
	_cleanup_free_ char *copy = malloc(size + 1);
	int r = 0;

	if (!copy)
		return moe_error_sys(err, -ENOMEM, "%s", file);
	if (size > 0)
		memcpy(copy, text, size);
	copy[size] = '\0';
	if (memchr(copy, '\0', size))
		return moe_error_set(err, -EINVAL, "%s: not a text: there is a NUL byte in it", file);
	for (char *at = copy + (strncmp(copy, mark, 3) == 0 ? 3 : 0), *end; r == 0 && *at; at = end) {
		end = strchrnul(at, '\n');
		if (*end)
			*end++ = '\0';
		reader.from.line++;
		r = take_line(&reader, at, err);
	}
	return r;
}

/* -- files -------------------------------------------------------------------------------------------------------- */

/* /dev/null stands for an empty file; anything else that is none could block or never end. */
static int check_kind(int fd, const char *path, struct moe_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "%s", path);
	if (!S_ISREG(st.st_mode) && !(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
		return moe_error_set(err, -EINVAL, "%s: a file expected, and this is none", path);
	if (st.st_size > SETTINGS_FILE_MAX)
		return moe_error_set(err, -EFBIG, "%s: %lld bytes; a configuration has at most %u", path,
				     (long long)st.st_size, SETTINGS_FILE_MAX);
	return 0;
}

static int read_all(int fd, char *to, size_t *ret_size)
{
	size_t have = 0;

	while (have < SETTINGS_FILE_MAX) {
		const ssize_t n = read(fd, to + have, SETTINGS_FILE_MAX - have);

		if (n == 0)
			break;
		if (n < 0 && errno != EINTR)
			return -errno;
		have += n > 0 ? (size_t)n : 0;
	}
	*ret_size = have;
	return 0;
}

static int note_file(struct settings *s, const char *path)
{
	char **files = realloc(s->files, (s->n_files + 1) * sizeof *files);

	if (!files)
		return -ENOMEM;
	s->files = files;
	files[s->n_files] = strdup(path);
	if (!files[s->n_files])
		return -ENOMEM;
	s->n_files++;
	return 0;
}

int settings_read_file(struct settings *s, const char *path, struct moe_error *err)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	int r;

	if (fd < 0)
		return moe_error_sys(err, -errno, "%s", path);
	r = check_kind(fd, path, err);
	if (r < 0)
		return r;
	text = malloc(SETTINGS_FILE_MAX);
	r = text ? read_all(fd, text, &size) : -ENOMEM;
	if (r == 0)
		r = note_file(s, path);
	if (r < 0)
		return moe_error_sys(err, r, "%s", path);
	return settings_parse(s, path, text, size, err);
}
