/* SPDX-License-Identifier: MIT */
#include "daemon/exporter.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/loop.h"
#include "daemon/http-library.h"
#include "metrics/metrics.h"

#define FRESH_NS 100000000u
#define PATIENCE_S 5 /* for the reactor */
#define IDLE_S 30    /* of a connection */
#define CONNECTIONS 16
#define BACKLOG 16

/* Written before there is a thread. */
static struct http_library http;

struct exporter {
	struct loop *loop;
	struct MHD_Daemon *daemon;
	struct exporter_address address;
	pthread_mutex_t lock;
	pthread_cond_t given_to;
	_Atomic bool wanted;
	bool given, stop;           /* under the lock */
	struct documents documents; /* under the lock: given */
	char *text;                 /* the thread's, from here on: what it gave out last, or NULL */
	uint64_t text_ns;
};

/* -- the thread --------------------------------------------------------------------------------------------------- */

/* False: none in time, or no memory for them. */
static bool wait_for_documents(struct exporter *e, struct documents *ret)
{
	struct timespec until;
	bool given;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&e->lock);
	documents_free(&e->documents); /* of one who did not wait so long */
	e->given = false;
	atomic_store(&e->wanted, true);
	loop_wake(e->loop);
	while (!e->given && !e->stop && pthread_cond_timedwait(&e->given_to, &e->lock, &until) == 0)
		continue;
	atomic_store(&e->wanted, false);
	given = e->given;
	*ret = e->documents;
	e->documents = (struct documents){0};
	pthread_mutex_unlock(&e->lock);
	return given && ret->status;
}

/* The text of now, or of just before. */
static const char *text_now(struct exporter *e)
{
	struct documents documents = {0};
	char *text = NULL;

	if (e->text && now_ns() - e->text_ns < FRESH_NS)
		return e->text;
	if (wait_for_documents(e, &documents))
		metrics_write(&text, &(struct metrics_documents){{documents.status, documents.stats, documents.models}},
			      NULL);
	documents_free(&documents);
	free(e->text);
	e->text = text;
	e->text_ns = now_ns();
	return text;
}

static enum MHD_Result answer(struct MHD_Connection *to, unsigned code, const char *type, const char *text)
{
	struct MHD_Response *response = http.MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
									     MHD_RESPMEM_MUST_COPY);
	enum MHD_Result r;

	if (!response)
		return MHD_NO;
	http.MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		http.MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	r = http.MHD_queue_response(to, code, response);
	http.MHD_destroy_response(response);
	return r;
}

/* Called for the head of a request, for pieces of a body, which nobody reads, and at its end. */
static enum MHD_Result request(void *cls, struct MHD_Connection *from, const char *url, const char *method,
			       const char *version, const char *body, size_t *bytes, void **seen)
{
	const char *text;

	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return answer(from, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", "GET or HEAD\n");
	if (!*seen || *bytes) {
		*seen = from;
		*bytes = 0;
		return MHD_YES;
	}
	if (strcmp(url, "/metrics") != 0)
		return answer(from, MHD_HTTP_NOT_FOUND, "text/plain", "moe-expertd: see /metrics\n");
	text = text_now(cls);
	if (!text)
		return answer(from, MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain", "moe-expertd is busy or ends\n");
	return answer(from, MHD_HTTP_OK, METRICS_CONTENT_TYPE, text);
}

/* -- the reactor -------------------------------------------------------------------------------------------------- */

bool exporter_wants(const struct exporter *e)
{
	return e && atomic_load_explicit(&e->wanted, memory_order_acquire);
}

void exporter_give(struct exporter *e, struct documents *documents)
{
	pthread_mutex_lock(&e->lock); /* the thread holds it for moments only */
	atomic_store(&e->wanted, false);
	documents_free(&e->documents);
	e->documents = *documents;
	e->given = true;
	pthread_cond_signal(&e->given_to);
	pthread_mutex_unlock(&e->lock);
	*documents = (struct documents){0};
}

/* -- life --------------------------------------------------------------------------------------------------------- */

static const char *path_of(const struct exporter_address *address)
{
	return address->sock.ss_family == AF_UNIX ? ((const struct sockaddr_un *)&address->sock)->sun_path : NULL;
}

/* A socket file on which nobody listens any more was left by a daemon that was killed. */
static int remove_stale(const struct exporter_address *address, const char *path, struct moe_error *err)
{
	_cleanup_close_ int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;

	if (lstat(path, &st) < 0)
		return 0;
	if (!S_ISSOCK(st.st_mode))
		return moe_error_set(err, -EEXIST, "--metrics %s: exists and is not a socket", path);
	if (sock < 0)
		return moe_error_sys(err, -errno, "--metrics %s", path);
	if (connect(sock, (const struct sockaddr *)&address->sock, address->bytes) == 0 || errno != ECONNREFUSED)
		return moe_error_set(err, -EADDRINUSE, "--metrics %s: somebody listens there already", path);
	unlink(path);
	return 0;
}

static unsigned port_of(const struct sockaddr_storage *sock)
{
	return ntohs(sock->ss_family == AF_INET ? ((const struct sockaddr_in *)sock)->sin_port
						: ((const struct sockaddr_in6 *)sock)->sin6_port);
}

static const char *way_out(int r)
{
	switch (r) {
	case -EADDRINUSE:
		return "is another program there? Name another port or path: ";
	case -EADDRNOTAVAIL:
		return "this machine must have the address (ip address): ";
	case -EACCES:
		return "ports below 1024 are root's: ";
	default:
		return "";
	}
}

static int refuse_address(const struct sockaddr_storage *sock, int r, struct moe_error *err)
{
	const bool v6 = sock->ss_family == AF_INET6;
	char host[INET6_ADDRSTRLEN] = "?";

	inet_ntop(sock->ss_family,
		  v6 ? (const void *)&((const struct sockaddr_in6 *)sock)->sin6_addr
		     : (const void *)&((const struct sockaddr_in *)sock)->sin_addr,
		  host, sizeof host);
	return moe_error_set(err, r, "--metrics %s%s%s:%u: cannot listen there; %s%s", v6 ? "[" : "", host,
			     v6 ? "]" : "", port_of(sock), way_out(r), strerror(-r));
}

static int open_socket(const struct exporter_address *address, uint32_t mode, struct moe_error *err)
{
	const char *path = path_of(address);
	_cleanup_close_ int sock = socket(address->sock.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int on = 1;
	mode_t before;
	int r = path ? remove_stale(address, path, err) : 0;

	if (r < 0)
		return r;
	if (sock < 0)
		return moe_error_sys(err, -errno, "--metrics: cannot make a socket");
	setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	before = umask(0777);
	r = bind(sock, (const struct sockaddr *)&address->sock, address->bytes) < 0 ? -errno : 0;
	umask(before);
	if (r == 0 && ((path && chmod(path, mode) < 0) || listen(sock, BACKLOG) < 0))
		r = -errno;
	if (r < 0 && path)
		return moe_error_sys(err, r, "--metrics %s: cannot listen", path);
	if (r < 0)
		return refuse_address(&address->sock, r, err);
	return steal_fd(&sock);
}

static void log_place(int sock, const struct exporter_address *address)
{
	struct sockaddr_storage name = {0};
	socklen_t bytes = sizeof name;

	if (path_of(address))
		log_info("metrics on %s", path_of(address));
	else if (getsockname(sock, (struct sockaddr *)&name, &bytes) == 0)
		log_info("metrics on port %u", port_of(&name));
	if (!address->local)
		log_warning(
			"metrics: whoever reaches this machine may read them (--metrics with an address that is not "
			"a loopback one)");
}

static bool same_socket(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* On a copy of the socket: in some cases of failure the library closes what it was given, in others not. */
static struct MHD_Daemon *start_daemon(struct exporter *e, int sock)
{
	const int own = fcntl(sock, F_DUPFD_CLOEXEC, 0);
	struct MHD_Daemon *daemon;

	if (own < 0)
		return NULL;
	daemon = http.MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, request, e,
				       MHD_OPTION_LISTEN_SOCKET, own, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
				       MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_END);
	if (!daemon && same_socket(own, sock))
		close_fd(own);
	return daemon;
}

int exporter_new(struct exporter **ret, const struct exporter_address *address, uint32_t mode, struct loop *loop,
		 struct moe_error *err)
{
	struct exporter *e = calloc(1, sizeof *e);
	pthread_condattr_t attr;
	int sock;

	if (!e)
		return moe_error_sys(err, -ENOMEM, "--metrics");
	sock = http_library_load(&http, err);
	if (sock == 0)
		sock = open_socket(address, mode, err);
	if (sock < 0) {
		free(e);
		return sock;
	}
	e->loop = loop;
	e->address = *address;
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->given_to, &attr);
	pthread_condattr_destroy(&attr);
	e->daemon = start_daemon(e, sock);
	if (!e->daemon) {
		shutdown(sock, SHUT_RDWR);
		close_fd(sock);
		exporter_free(e, false);
		return moe_error_set(err, -ENOMEM, "--metrics: libmicrohttpd cannot start its thread");
	}
	log_place(sock, address);
	close_fd(sock);
	*ret = e;
	return 0;
}

struct exporter *exporter_free(struct exporter *e, bool leaves)
{
	if (!e)
		return NULL;
	pthread_mutex_lock(&e->lock);
	e->stop = true;
	pthread_cond_signal(&e->given_to);
	pthread_mutex_unlock(&e->lock);
	if (e->daemon)
		http.MHD_stop_daemon(e->daemon); /* closes the socket */
	if (path_of(&e->address) && !leaves)
		unlink(path_of(&e->address));
	documents_free(&e->documents);
	pthread_cond_destroy(&e->given_to);
	pthread_mutex_destroy(&e->lock);
	free(e->text);
	free(e);
	return NULL;
}
