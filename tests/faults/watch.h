/* SPDX-License-Identifier: MIT */
/*
 * faults/watch - what is asked of a daemon by those who look at it: a trace, its heat, metrics, its configuration anew.
 */
#ifndef TESTS_FAULTS_WATCH_H
#define TESTS_FAULTS_WATCH_H

#include "tests/faults/client.h"

/* On a connection of its own, which waits for the end. */
static int begin_trace(struct run *run)
{
	struct moe_msg_trace m = {.name = "small", .max_ms = PATIENCE_MS};
	char path[PATH_MAX];
	int sock = connect_to(run), fd;

	path_in(path, run, "trace");
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	begin(&m, sizeof m, MOE_MSG_TRACE, 1);
	if (fd < 0 || !say_hello(run, sock) || fdmsg_send(sock, &m, sizeof m, &fd, 1, 0) < 0)
		sock = close_fd(sock);
	close_fd(fd);
	return sock;
}

/* The trace may have ended, or never begun; its asker hears of it in either case. */
static void end_trace(struct run *run, struct client *c, int sock)
{
	struct moe_msg m;
	unsigned int type = MOE_MSG_PROGRESS;

	begin(&m, sizeof m, MOE_MSG_TRACE_STOP, 0);
	answered(run, "trace-stop", exchange(c->sock, &m, sizeof m, NULL, 0), MOE_MSG_TRACE_STOP);
	while (type == MOE_MSG_PROGRESS)
		type = fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) > 0
			       ? ((struct moe_msg *)answer)->type
			       : 0;
	answered(run, "trace", type, MOE_MSG_TRACE);
	close_fd(sock);
}

/* Nothing at all is an answer as well, of a daemon that lacks the means. */
static void scrape(struct run *run)
{
	static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
	const bool may_wait = run->fault && run->fault->ever; /* for a descriptor, for ever */
	const struct timeval wait = {.tv_sec = may_wait ? 2 : PATIENCE_MS / 1000};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char text[1 << 16];
	size_t n = 0;
	ssize_t more = 1;

	snprintf(address.sun_path, sizeof address.sun_path, "%s/metrics", run->f.folder);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	if (connect(sock, (struct sockaddr *)&address, sizeof address) == 0 &&
	    send(sock, request, sizeof request - 1, MSG_NOSIGNAL) == sizeof request - 1)
		while (more > 0 && n < sizeof text - 1) {
			more = recv(sock, text + n, sizeof text - 1 - n, 0);
			n += more > 0 ? (size_t)more : 0;
		}
	if (more < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !may_wait)
		wrong(run, "a scraper gets no answer in %d s", PATIENCE_MS / 1000);
	close(sock);
	text[n] = '\0';
	if (strstr(text, " 200 OK") && strstr(text, "moe_expertd_"))
		run->fine++;
	else if (n > 0 && strncmp(text, "HTTP/1.", 7) != 0)
		wrong(run, "a scraper gets '%.40s'", text);
	else
		run->refused++;
}

static void warm(struct client *c)
{
	uint32_t *heat = (uint32_t *)((uint8_t *)c->ring.client + c->ring.daemon->heat_offset);

	if (!c->ring.daemon->heat_offset)
		return;
	__atomic_fetch_add(&heat[1], 7, __ATOMIC_RELAXED);
	((struct moe_layer_stats *)((uint8_t *)c->ring.client + c->ring.daemon->stats_offset))->steps++;
}

static void ask_heat(struct run *run, struct client *c)
{
	struct moe_msg_query m = {.what = MOE_QUERY_HEAT};

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	answered(run, "heat", exchange(c->sock, &m, sizeof m, NULL, 0), MOE_MSG_QUERY);
}

static void watch(struct run *run, struct client *c)
{
	const int tracer = begin_trace(run);
	struct moe_sqe hint = {.op = MOE_OP_HINT, .layer = first_layer(c->manifest), .count = TOPK};
	struct moe_cqe cqe;

	warm(c);
	hint.hint.ids = ALIGN_UP((uint64_t)TOKENS * c->manifest->hidden * sizeof(float), (uint64_t)4096);
	if (c->ring.data)
		call(run, c, hint, &cqe);
	for (uint32_t i = 0; c->ring.data && i < 2; i++)
		compute(run, c, i);
	kill(run->f.pid, SIGHUP);
	if (tracer >= 0 && !run->closed)
		end_trace(run, c, tracer);
	if (!run->closed)
		ask_heat(run, c);
	scrape(run);
}

#endif
