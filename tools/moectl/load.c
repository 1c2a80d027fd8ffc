/* SPDX-License-Identifier: MIT */
/* load, unload - bring a model into memory with a progress bar; take it out. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/path.h"
#include "moectl.h"

#define BAR 40

static void print_progress(const struct moe_progress *p, void *userdata)
{
	const bool *terminal = userdata;
	const double share = p->total_bytes ? (double)p->done_bytes / (double)p->total_bytes : 0;
	const double rate = p->elapsed_ns ? (double)p->done_bytes / (double)p->elapsed_ns : 0;
	char bar[BAR + 1], total[SHOW_TEXT], eta[SHOW_TEXT];

	if (!*terminal)
		return;
	if (p->done_bytes == 0) {
		fprintf(stderr, "\rpreparing memory for %s   ", show_bytes(total, (double)p->total_bytes));
		return;
	}
	memset(bar, ' ', BAR);
	memset(bar, '=', (size_t)(share * BAR));
	bar[BAR] = '\0';
	fprintf(stderr, "\r[%s] %3.0f %% of %s, %.2f GB/s, %s to go   ", bar, 100 * share,
		show_bytes(total, (double)p->total_bytes), rate, show_time(eta, (double)p->eta_ns));
}

/* The daemon loads on when we leave: whoever interrupts us would not know. */
static void say_it_goes_on(int number)
{
	static const char text[] = "\nmoectl: a load that has begun goes on without moectl: see moectl status\n";

	if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
		_exit(128 + number);
	raise(number); /* SA_RESETHAND, SA_NODEFER: it ends us */
}

static void catch_interrupts(void)
{
	const struct sigaction action = {.sa_handler = say_it_goes_on, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
	const int numbers[] = {SIGINT, SIGTERM};
	struct sigaction before;

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
}

int verb_load(const struct arguments *arg)
{
	struct long_wait wait = {.arg = arg,
				 .leave = "Ctrl-C ends moectl, and not a load that has begun",
				 .terminal = isatty(STDERR_FILENO) && !arg->json};
	struct moe_client *client;
	struct moe_error err = {0};
	char *path = path_real(arg->words[0]);
	int r;

	if (!path) {
		fprintf(stderr,
			"moectl: %s: a folder with config.json and safetensors files, or a GGUF file, expected: %s\n",
			arg->words[0], strerror(errno));
		return EXIT_FAILED;
	}
	r = open_for_long(&client, &wait, &err);
	if (r == 0) {
		catch_interrupts();
		r = moe_load(client, path, arg->name, print_progress, &wait.terminal, &err);
		if (wait.terminal)
			fputs("\r\033[K", stderr);
		moe_close(client);
	}
	free(path);
	if (r < 0)
		return fail(&err);
	return verb_models(arg);
}

static int unload(struct moe_client *client, const struct arguments *arg, struct moe_error *err)
{
	return moe_unload(client, arg->words[0], err);
}

int verb_unload(const struct arguments *arg)
{
	return tell(arg, unload);
}
