/* SPDX-License-Identifier: MIT */
/* top - who computes what just now: a screen that is drawn again and again, or one frame as text. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "moectl.h"
#include "screen.h"
#include "top-fetch.h"

#define TEXT_COLUMNS 100 /* of a frame that is not for a terminal */

struct top {
	const struct arguments *arg;
	struct top_fetch *fetch;
	int signals;
	struct top_view view;
	struct top_documents now;
	struct moe_error gone; /* why there was no answer; "" */
	enum top_order order;
	bool paused, stop, had, back; /* had: an answer, ever; back: after there was none, until a key is typed */
	uint64_t asked_ns, next_ns;
};

static uint64_t interval_ns(const struct arguments *arg)
{
	return (uint64_t)(arg->interval * 1e9);
}

/* -- one frame as text -------------------------------------------------------------------------------------------- */

static int print_frame(const struct arguments *arg)
{
	const uint64_t ns = interval_ns(arg);
	const struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
	struct top_documents before = {0}, now = {0};
	struct moe_error err = {0};
	struct top_view view;
	struct frame *frame = calloc(1, sizeof *frame);
	int r = frame ? top_fetch_now(arg, &before, &err) : -ENOMEM;

	if (r == 0) {
		nanosleep(&pause, NULL);
		r = top_fetch_now(arg, &now, &err);
	}
	if (r == 0) {
		top_view_make(&view, &before, &now);
		top_view_sort(&view, TOP_BY_PAIRS);
		frame_draw(frame, TEXT_COLUMNS, 0, &view, "", NULL);
		for (unsigned i = 0; i < frame->n; i++)
			printf("%s\n", frame->lines[i].text);
		top_view_free(&view);
	}
	top_documents_free(&before);
	top_documents_free(&now);
	free(frame);
	return r < 0 ? fail(&err) : EXIT_DONE;
}

/* -- the screen --------------------------------------------------------------------------------------------------- */

static void draw(struct top *t)
{
	const uint64_t silent = t->asked_ns ? now_ns() - t->asked_ns : 0;
	static struct frame frame;
	char notice[MOE_ERROR_TEXT_MAX + 64] = "", keys[128];
	unsigned columns, rows;

	if (*t->gone.text)
		snprintf(notice, sizeof notice, "NO DAEMON: %s", t->gone.text);
	else if (silent > 2 * interval_ns(t->arg) + 1000000000u)
		snprintf(notice, sizeof notice, "NO ANSWER for %.0f s", (double)silent / 1e9);
	else if (!t->had)
		snprintf(notice, sizeof notice, "asking the daemon");
	else if (t->back)
		snprintf(notice, sizeof notice, "the daemon is back");
	snprintf(keys, sizeof keys, "q quit  s sort: %s  p %s  every %g s", top_order_name(t->order),
		 t->paused ? "PAUSED" : "pause", t->arg->interval);
	screen_size(&columns, &rows);
	top_view_sort(&t->view, t->order);
	frame_draw(&frame, columns, rows, &t->view, notice, keys);
	screen_draw(&frame);
}

static void take(struct top *t)
{
	struct top_documents now = {0};
	struct moe_error err = {0};
	const int r = top_fetch_take(t->fetch, &now, &err);

	if (r == -EAGAIN)
		return;
	t->asked_ns = 0;
	if (r < 0) {
		t->gone = err;
		return;
	}
	t->back |= t->had && *t->gone.text;
	t->had = true;
	t->gone.text[0] = '\0';
	top_view_free(&t->view);
	top_view_make(&t->view, &t->now, &now);
	top_documents_free(&t->now);
	t->now = now;
}

static void keys(struct top *t)
{
	int key;

	while ((key = screen_key())) {
		t->back = false;
		if (key == 'q')
			t->stop = true;
		else if (key == 's')
			t->order = (t->order + 1) % TOP_ORDERS;
		else if (key == 'p' || key == ' ')
			t->paused = !t->paused;
	}
}

static void signals(struct top *t)
{
	struct signalfd_siginfo info;

	while (read(t->signals, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGWINCH)
			screen_resized();
		else
			t->stop = true;
	}
}

static void ask_again(struct top *t)
{
	const uint64_t now = now_ns();

	if (t->paused || now < t->next_ns)
		return;
	t->next_ns = now + interval_ns(t->arg);
	if (top_fetch_ask(t->fetch))
		t->asked_ns = now;
}

static void run(struct top *t)
{
	struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
			       {.fd = t->signals, .events = POLLIN},
			       {.fd = top_fetch_fd(t->fetch), .events = POLLIN}};

	while (!t->stop) {
		const uint64_t now = now_ns();
		uint64_t left;

		ask_again(t);
		draw(t);
		left = t->paused ? 3600000000000u : t->next_ns > now ? t->next_ns - now : 0;
		if (poll(fds, 3, (int)(left / 1000000u) + 1) < 0 && errno != EINTR)
			break;
		if (fds[0].revents & (POLLHUP | POLLERR | POLLNVAL))
			t->stop = true;
		if (fds[1].revents)
			signals(t);
		if (fds[2].revents)
			take(t);
		keys(t);
	}
}

static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGWINCH);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int verb_top(const struct arguments *arg)
{
	static struct top t; /* the thread may outlive this function, in a program that ends */
	struct moe_error err = {0};
	int r;

	if (arg->once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		return print_frame(arg);
	t.arg = arg;
	t.signals = open_signals();
	r = top_fetch_new(&t.fetch, arg, &err);
	if (r == 0)
		r = screen_open(&err);
	if (r < 0)
		return fail(&err);
	run(&t);
	screen_close();
	top_view_free(&t.view);
	top_documents_free(&t.now);
	if (t.asked_ns)
		_exit(EXIT_DONE); /* the thread may still wait for an answer */
	return EXIT_DONE;
}
