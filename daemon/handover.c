/* SPDX-License-Identifier: MIT */
#include "daemon/handover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/outbox.h"

#define LISTEN_FDS_MAX 65536
#define NAME_BYTES 256 /* the service manager's own names may be longer than ours */
#define MESSAGE_BYTES 1024
#define BUCKETS 1024 /* a page: of a thousand sessions six names are in each */

struct kept {
	char *name;             /* NULL: this place is free */
	int fd;                 /* from the run before and not yet taken, else -1 */
	bool unwanted;          /* dropped while the handover held */
	struct letter *waiting; /* the keeper has not heard of it yet */
	uint32_t next;          /* place + 1 of the next one in its bucket, or of those that are free again; 0: none */
};

struct handover {
	struct outbox outbox; /* its socket is connected to NOTIFY_SOCKET, -1: none */
	uint32_t max;         /* how many the keeper takes, 0: none */
	uint32_t n_names;     /* in use */
	bool succeeds, holds;
	size_t names_bytes;
	uint32_t room, n; /* places of the table: all, and up to where there are names */
	struct kept *kept;
	uint32_t free;             /* place + 1 of the first that is free again */
	uint32_t buckets[BUCKETS]; /* place + 1 of the first name of each */
};

/* -- the table ---------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(struct handover *h, const char *name)
{
	return &h->buckets[XXH3_64bits(name, strlen(name)) % BUCKETS];
}

static struct kept *find(struct handover *h, const char *name)
{
	for (uint32_t at = h ? *bucket_of(h, name) : 0; at; at = h->kept[at - 1].next)
		if (strcmp(h->kept[at - 1].name, name) == 0)
			return &h->kept[at - 1];
	return NULL;
}

/* There is room for what the keeper takes, and for what came from it. Takes over the name. */
static struct kept *enter(struct handover *h, char *name, int fd)
{
	const uint32_t i = h->free ? h->free - 1 : h->n;
	uint32_t *bucket = bucket_of(h, name);

	assert(i < h->room && !h->kept[i].name);
	if (h->free)
		h->free = h->kept[i].next;
	h->n = MAX(h->n, i + 1);
	h->kept[i] = (struct kept){.name = name, .fd = fd, .next = *bucket};
	*bucket = i + 1;
	h->n_names++;
	h->names_bytes += strlen(name) + 1;
	return &h->kept[i];
}

static void forget(struct handover *h, struct kept *k)
{
	const uint32_t place = (uint32_t)(k - h->kept) + 1;
	uint32_t *at = bucket_of(h, k->name);

	while (*at != place)
		at = &h->kept[*at - 1].next;
	*at = k->next;
	k->next = h->free;
	h->free = place;
	h->n_names--;
	h->names_bytes -= strlen(k->name) + 1;
	k->fd = close_fd(k->fd);
	free(k->name);
	k->name = NULL;
	while (h->n > 0 && !h->kept[h->n - 1].name)
		h->n--;
}

static bool name_from(char ret[static NAME_BYTES], const char *format, va_list args)
{
	const int n = vsnprintf(ret, NAME_BYTES, format, args);

	return n > 0 && n < NAME_BYTES;
}

static bool name_is_ours(const char *name)
{
	const size_t n = strlen(name);

	return n <= HANDOVER_NAME_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == n;
}

/* -- from the run before ------------------------------------------------------------------------------------------ */

static unsigned long number_from(const char *variable, unsigned long max)
{
	const char *text = getenv(variable);
	char *end;
	unsigned long n;

	if (!text || *text < '0' || *text > '9')
		return 0;
	n = strtoul(text, &end, 10);
	return *end ? 0 : MIN(n, max);
}

/* The next of the names between colons, cut to what a place has room for; "unknown", as the service manager says, when
 * there is none. */
static void next_name(char ret[static NAME_BYTES], const char **names)
{
	const size_t n = *names ? strcspn(*names, ":") : 0;

	snprintf(ret, NAME_BYTES, "%.*s", n ? (int)MIN(n, (size_t)NAME_BYTES) : 7, n ? *names : "unknown");
	if (*names)
		*names = (*names)[n] ? *names + n + 1 : NULL;
}

static bool is_activated(const char *name)
{
	const size_t n = strlen(name);

	return n > 7 && strcmp(name + n - 7, ".socket") == 0;
}

/* All of them or none: without one of its files a session would end that a later daemon can go on with. */
static int take_over(struct handover *h, uint32_t n)
{
	const char *names = getenv("LISTEN_FDNAMES");
	char name[NAME_BYTES], *copy;
	int r = 0;

	for (uint32_t i = 0; i < n; i++) {
		const int fd = HANDOVER_LISTEN_FD + (int)i;

		next_name(name, &names);
		if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
			log_warning("LISTEN_FDS=%u: descriptor %d (%s): %s; passed over", n, fd, name, strerror(errno));
		} else if (find(h, name)) {
			log_warning("LISTEN_FDNAMES: %s: a second descriptor of this name; closed", name);
			close_fd(fd);
		} else if (!(copy = strdup(name))) {
			close_fd(fd);
			r = -ENOMEM;
		} else {
			enter(h, copy, fd);
		}
	}
	for (uint32_t i = 0; i < h->n; i++)
		h->succeeds |= h->kept[i].name && !is_activated(h->kept[i].name);
	return r;
}

/* How many descriptors were handed to this very process. */
static uint32_t count_handed(void)
{
	const bool ours = number_from("LISTEN_PID", INT32_MAX) == (unsigned long)getpid();

	return ours ? (uint32_t)number_from("LISTEN_FDS", LISTEN_FDS_MAX) : 0;
}

static void close_handed(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		close_fd(HANDOVER_LISTEN_FD + (int)i);
}

void handover_refuse(void)
{
	close_handed(count_handed());
}

static int connect_to_keeper(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	const size_t n = path ? strlen(path) : 0;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	_cleanup_close_ int sock = -1;

	if (n < 2 || n >= sizeof address.sun_path || !strchr("/@", *path))
		return -1; /* none, or no kind that carries descriptors */
	memcpy(address.sun_path, path, n);
	if (*path == '@')
		address.sun_path[0] = '\0';
	sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0 || connect(sock, (struct sockaddr *)&address,
				(socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (*path == '/'))) < 0) {
		log_warning("NOTIFY_SOCKET=%s: %s; nothing will outlive this process", path, strerror(errno));
		return -1;
	}
	return steal_fd(&sock);
}

int handover_new(struct handover **ret, struct moe_error *err)
{
	const uint32_t n = count_handed();
	struct handover *h = calloc(1, sizeof *h);
	int r;

	if (!h) {
		close_handed(n);
		return moe_error_sys(err, -ENOMEM, "handover");
	}
	h->outbox.sock = connect_to_keeper();
	h->max = h->outbox.sock < 0 ? 0 : (uint32_t)number_from("FDSTORE", LISTEN_FDS_MAX);
	h->room = n + h->max;
	h->kept = h->room ? calloc(h->room, sizeof *h->kept) : NULL;
	if (h->room && !h->kept) {
		close_handed(n);
		handover_free(h);
		return moe_error_sys(err, -ENOMEM, "handover");
	}
	r = take_over(h, n);
	if (r < 0) {
		handover_free(h);
		return moe_error_sys(err, r, "handover: the names of %u descriptors", n);
	}
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	*ret = h;
	return 0;
}

/* NULL: no such name, or none at all. */
static struct kept *find_formatted(struct handover *h, const char *format, va_list args)
{
	char name[NAME_BYTES];

	return name_from(name, format, args) ? find(h, name) : NULL;
}

int handover_take(struct handover *h, const char *format, ...)
{
	struct kept *k;
	va_list args;

	va_start(args, format);
	k = find_formatted(h, format, args);
	va_end(args);
	return k && k->fd >= 0 ? steal_fd(&k->fd) : -ENOENT;
}

int handover_take_activated(struct handover *h)
{
	for (uint32_t i = 0; h && i < h->n; i++)
		if (h->kept[i].name && h->kept[i].fd >= 0 && is_activated(h->kept[i].name))
			return steal_fd(&h->kept[i].fd);
	return -ENOENT;
}

const char *handover_next(struct handover *h, const char *prefix, uint32_t *cursor)
{
	while (h && *cursor < h->n) {
		const struct kept *k = &h->kept[(*cursor)++];

		if (k->name && k->fd >= 0 && strncmp(k->name, prefix, strlen(prefix)) == 0)
			return k->name;
	}
	return NULL;
}

/* -- to the keeper ------------------------------------------------------------------------------------------------ */

bool handover_keeps(const struct handover *h)
{
	return h && h->max > 0;
}

uint32_t handover_room(const struct handover *h)
{
	return h && h->max > h->n_names ? h->max - h->n_names : 0;
}

/* Where sessions have taken all, a model that is loaded would be read from disk again. */
static bool is_full(const struct handover *h, const char *name)
{
	const bool session = name[0] == 's' && name[1] >= '0' && name[1] <= '9';
	const size_t left = session ? MIN(HANDOVER_FDS_MODELS, h->max / 32) : 0;
	const size_t bytes = left * sizeof "m123456.manifest" + strlen(name) + 1;

	return h->n_names + left >= h->max || h->names_bytes + bytes > HANDOVER_NAMES_BYTES_MAX;
}

int handover_put(struct handover *h, int fd, const char *format, ...)
{
	char name[NAME_BYTES], *copy;
	struct kept *k;
	va_list args;
	bool good;
	int r;

	va_start(args, format);
	good = name_from(name, format, args);
	va_end(args);
	if (!handover_keeps(h))
		return -EOPNOTSUPP;
	if (!good || !name_is_ours(name) || is_activated(name))
		return -EINVAL;
	if (find(h, name))
		return -EEXIST;
	if (is_full(h, name))
		return -ENOSPC;
	copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	k = enter(h, copy, -1);
	r = outbox_tell(&h->outbox, "FDSTORE", name, fd, &k->waiting);
	if (r < 0)
		forget(h, k);
	return r;
}

static int drop(struct handover *h, struct kept *k)
{
	int r = 0;

	if (h->holds) {
		k->fd = close_fd(k->fd);
		k->unwanted = true;
		return 0;
	}
	if (k->waiting)
		outbox_take_back(&h->outbox, k->waiting);
	else if (handover_keeps(h))
		r = outbox_tell(&h->outbox, "FDSTOREREMOVE", k->name, -1, NULL);
	if (r == 0)
		forget(h, k);
	return r;
}

int handover_drop(struct handover *h, const char *format, ...)
{
	struct kept *k;
	va_list args;

	va_start(args, format);
	k = find_formatted(h, format, args);
	va_end(args);
	return k ? drop(h, k) : 0;
}

static void drop_unwanted(struct handover *h, struct kept *k)
{
	const int r = drop(h, k);

	if (r < 0)
		log_warning("%s: cannot be dropped from what is kept: %s", k->name, strerror(-r));
}

void handover_discard_rest(struct handover *h)
{
	for (uint32_t i = 0; h && i < h->n; i++) {
		struct kept *k = &h->kept[i];

		if (!k->name || k->fd < 0 || is_activated(k->name))
			continue;
		log_debug("%s: kept, but nobody wants it: dropped", k->name);
		k->fd = close_fd(k->fd);
		drop_unwanted(h, k);
	}
}

bool handover_succeeds(const struct handover *h)
{
	return h && h->succeeds;
}

void handover_hold(struct handover *h)
{
	if (h)
		h->holds = true;
}

void handover_settle(struct handover *h)
{
	if (h)
		h->holds = false;
	for (uint32_t i = 0; h && i < h->n; i++)
		if (h->kept[i].name && h->kept[i].unwanted)
			drop_unwanted(h, &h->kept[i]);
}

int handover_socket(const struct handover *h)
{
	return h ? h->outbox.sock : -1;
}

void handover_on_waiting(struct handover *h, void (*waits)(void *), void *userdata)
{
	if (h) {
		h->outbox.waits = waits;
		h->outbox.userdata = userdata;
	}
}

uint32_t handover_post(struct handover *h)
{
	return h ? outbox_post(&h->outbox) : 0;
}

uint32_t handover_waiting(const struct handover *h)
{
	return h ? h->outbox.n : 0;
}

bool handover_sent(const struct handover *h, uint64_t ns)
{
	const struct letter *first = h ? h->outbox.first : NULL;

	return !first || first->since_ns > ns || now_ns() - first->since_ns >= HANDOVER_PATIENCE_NS;
}

int handover_flush(struct handover *h)
{
	return h ? outbox_flush(&h->outbox, HANDOVER_FLUSH_NS) : 0;
}

int handover_barrier(struct handover *h)
{
	_cleanup_close_ int ours = -1, theirs = -1;
	int ends[2], r;

	if (!h || h->outbox.sock < 0)
		return -EOPNOTSUPP;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	ours = ends[0];
	theirs = ends[1];
	r = outbox_tell(&h->outbox, "BARRIER", "", theirs, NULL);
	return r < 0 ? r : steal_fd(&ours);
}

int handover_sync(struct handover *h, uint64_t timeout_ns)
{
	const uint64_t end = now_ns() + timeout_ns;
	_cleanup_close_ int barrier = -1;

	if (!handover_keeps(h))
		return 0;
	barrier = handover_barrier(h);
	if (barrier < 0)
		return barrier;
	for (;;) {
		struct pollfd fds[] = {{.fd = barrier}, {.fd = h->outbox.sock, .events = POLLOUT}};
		const uint32_t n_fds = outbox_post(&h->outbox) ? 2 : 1;
		const uint64_t now = now_ns(), left = end > now ? end - now : 0;
		const struct timespec wait = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
		const int n = ppoll(fds, n_fds, &wait, NULL);

		if (n > 0 && fds[0].revents)
			return 0;
		if (n == 0)
			return -ETIMEDOUT;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

int handover_notify(struct handover *h, const char *format, ...)
{
	char message[MESSAGE_BYTES];
	va_list args;
	int n;

	if (!h || h->outbox.sock < 0)
		return 0;
	va_start(args, format);
	n = vsnprintf(message, sizeof message, format, args);
	va_end(args);
	if (n < 0 || n >= (int)sizeof message)
		return -EMSGSIZE;
	return fdmsg_send(h->outbox.sock, message, (size_t)n, NULL, 0, 1);
}

uint64_t handover_watchdog_us(const struct handover *h)
{
	const unsigned long pid = number_from("WATCHDOG_PID", INT32_MAX);

	if (!h || h->outbox.sock < 0 || (getenv("WATCHDOG_PID") && pid != (unsigned long)getpid()))
		return 0;
	return number_from("WATCHDOG_USEC", LONG_MAX);
}

struct handover *handover_free(struct handover *h)
{
	if (!h)
		return NULL;
	handover_flush(h);
	outbox_clear(&h->outbox);
	for (uint32_t i = 0; i < h->n; i++) {
		close_fd(h->kept[i].name ? h->kept[i].fd : -1);
		free(h->kept[i].name);
	}
	free(h->kept);
	close_fd(h->outbox.sock);
	free(h);
	return NULL;
}
