/* SPDX-License-Identifier: MIT */
#include "tools/worker/run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/stdout.h"
#include "base/util.h"
#include "tools/worker/loaded.h"
#include "tools/worker/spawn.h"

#define EXIT_USAGE 2
#define EXIT_CANNOT_RUN_HERE 77
#define WINDOW_DEFAULT 256u

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
	signalled = number;
}

bool run_interrupted(void)
{
	return signalled != 0;
}

static void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = on_signal};

	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		sigaction(signals[i], &action, NULL);
	signal(SIGPIPE, SIG_IGN); /* a reader that has gone is an error of the write */
}

/* What a run needs, in the order in which it is opened; closed in the other. */
struct worker {
	struct options options;
	struct model *model, *other; /* other: where the experts come from, when not from `model` */
	struct arch arch;
	struct tokens input;
	struct weights *weights;
	struct spawn *spawn;
	char *model_name; /* at a daemon that was running */
	struct group group;
	struct run run;
	uint32_t positions, tokens_max;
};

static void note_vocabulary(const struct arch *arch, const struct options *o)
{
	if (arch->vocab != 256 && !o->ids)
		fprintf(stderr,
			"moe-worker: there is no tokenizer: bytes are used as token ids of a vocabulary of %u\n",
			arch->vocab);
}

/* How long the context and the steps get; refuses what cannot fit before anything is started. */
static int measure(struct worker *w, struct moe_error *err)
{
	struct options *o = &w->options;
	const uint32_t positions = w->arch.positions;

	if (o->command == COMMAND_SCORE) {
		w->run.window = o->window ? o->window : MIN(WINDOW_DEFAULT, positions);
		if (w->run.window < 2)
			return moe_error_set(err, -EINVAL,
					     "%s: max_position_embeddings found %u, at least 2 expected to score text",
					     o->model, positions);
		if (w->run.window > positions)
			return moe_error_set(err, -EINVAL,
					     "--window: found %u, expected at most max_position_embeddings (%u)",
					     w->run.window, positions);
		if (w->input.n < w->run.window)
			return moe_error_set(err, -EINVAL, "%s: found %zu tokens, expected at least one window of %u",
					     o->ids ? o->ids : o->text, w->input.n, w->run.window);
		w->positions = w->run.window;
		w->tokens_max = o->decode ? 1 : MIN(w->run.window, FORWARD_TOKENS_MAX);
		return 0;
	}
	if (w->input.n > positions)
		return moe_error_set(err, -EINVAL,
				     "the prompt has %zu tokens, expected at most max_position_embeddings (%u)",
				     w->input.n, positions);
	if (o->tokens > positions - w->input.n + 1) {
		o->tokens = (uint32_t)(positions - w->input.n + 1);
		fprintf(stderr, "moe-worker: max_position_embeddings is %u: %u tokens at most after this prompt\n",
			positions, o->tokens);
	}
	w->positions = (uint32_t)(w->input.n + o->tokens - 1);
	w->tokens_max = (uint32_t)MIN(w->input.n, (size_t)FORWARD_TOKENS_MAX);
	return 0;
}

static int open_daemon(struct worker *w, struct moe_error *err)
{
	const struct options *o = &w->options;

	if (o->experts == EXPERTS_LOCAL)
		return 0;
	if (o->daemon)
		return loaded_find(&w->model_name, o->daemon, options_experts(o), err);
	return spawn_new(&w->spawn, o, err);
}

static const struct model *experts_model(const struct worker *w)
{
	return w->other ? w->other : w->model;
}

/* The experts of another folder or file: the same layers, numbers and sizes. */
static int open_other(struct worker *w, struct moe_error *err)
{
	const struct model_config *a = &w->model->config, *b;
	int r;

	if (!w->options.experts_from)
		return 0;
	r = model_open(&w->other, w->options.experts_from, err);
	if (r < 0)
		return r;
	b = &w->other->config;
	if (a->n_layers != b->n_layers || a->n_experts != b->n_experts || a->topk != b->topk ||
	    a->hidden != b->hidden || a->inter != b->inter || a->activation != b->activation ||
	    memcmp(a->is_moe, b->is_moe, a->n_layers) != 0)
		return moe_error_set(
			err, -EINVAL,
			"--experts-from %s: %u layers, %u experts, top %u, hidden %u, intermediate %u; expected "
			"the same model as %s: %u, %u, %u, %u, %u",
			w->options.experts_from, b->n_layers, b->n_experts, b->topk, b->hidden, b->inter,
			w->options.model, a->n_layers, a->n_experts, a->topk, a->hidden, a->inter);
	return 0;
}

static int open_all(struct worker *w, struct moe_error *err)
{
	const struct options *o = &w->options;
	int r;

	if ((r = model_open(&w->model, o->model, err)) < 0 || (r = arch_read(&w->arch, w->model, err)) < 0 ||
	    (r = open_other(w, err)) < 0 || (r = tokens_read(&w->input, o, w->arch.vocab, err)) < 0 ||
	    (r = measure(w, err)) < 0)
		return r;
	if (o->tp > w->arch.expert_inter)
		return moe_error_set(err, -EINVAL, "--tp: found %u, expected at most the expert's %u", o->tp,
				     w->arch.expert_inter);
	if (o->defer >= w->arch.router.topk)
		return moe_error_set(err, -EINVAL,
				     "--defer: found %u, expected at most %u: a token's strongest expert of %u never "
				     "waits",
				     o->defer, w->arch.router.topk - 1, w->arch.router.topk);
	note_vocabulary(&w->arch, o);
	/* The daemon loads its weights while the worker prepares its own. */
	if ((r = open_daemon(w, err)) < 0 || (r = weights_load(&w->weights, w->model, &w->arch, err)) < 0)
		return r;
	return w->spawn ? spawn_wait(w->spawn, err) : 0;
}

/* `auto` is the first GPU, or else this host; both parts of a pass are to be on the same one. */
static int choose_device(struct options *o, struct moe_error *err)
{
	if (o->dense != DENSE_DEVICE || strcmp(o->device, "auto") != 0)
		return 0;
	if (forward_cuda_finds("cuda")) {
		o->device = "cuda";
		return 0;
	}
	if (o->graph)
		return moe_error_set(err, -ENODEV, "--graph: --device auto finds no GPU");
	o->device = "host";
	o->dense = DENSE_HOST;
	return 0;
}

static int open_forward(struct worker *w, struct moe_error *err)
{
	const struct options *o = &w->options;
	struct run *run = &w->run;

	if (o->dense == DENSE_DEVICE)
		return forward_cuda_new(&run->forward, o->device, o->graph, &w->arch, w->weights, run->experts,
					&w->group, w->positions, w->tokens_max, err);
	return forward_host_new(&run->forward, &w->arch, w->weights, run->experts, &w->group, w->positions,
				w->tokens_max, err);
}

/* In every rank. */
static int run_rank(struct worker *w, struct moe_error *err)
{
	struct options *o = &w->options;
	struct run *run = &w->run;
	const char *socket = w->spawn ? spawn_socket(w->spawn) : o->daemon;
	int r = choose_device(o, err);

	run->options = o;
	run->arch = &w->arch;
	run->group = &w->group;
	run->input = &w->input;
	run->speaks = w->group.rank == 0;
	if (r == 0 && o->experts == EXPERTS_LOCAL)
		r = experts_local_new(&run->experts, experts_model(w), &w->arch, &w->group, w->tokens_max, err);
	else if (r == 0)
		r = experts_daemon_new(&run->experts, o, socket, w->model_name, experts_model(w), &w->arch, &w->group,
				       w->tokens_max, err);
	if (r == 0)
		r = open_forward(w, err);
	if (r == 0)
		r = (o->command == COMMAND_SCORE ? run_score : run_generate)(run, err);
	if (r < 0)
		group_fail(&w->group, w->group.rank, err->text);
	run->experts = experts_free(run->experts); /* what is in flight may use the pass's memory */
	run->forward = forward_free(run->forward);
	return r;
}

static void close_all(struct worker *w)
{
	spawn_free(w->spawn);
	weights_free(w->weights);
	tokens_free(&w->input);
	free(w->model_name);
	model_free(w->other);
	model_free(w->model);
}

static int run_worker(struct worker *w, struct moe_error *err)
{
	int r = open_all(w, err), end;

	if (r < 0)
		return r;
	r = group_new(&w->group, w->options.tp, (uint64_t)w->tokens_max * w->arch.hidden, err);
	if (r == 0) {
		if (w->group.rank > 0)
			spawn_disown(w->spawn);
		r = run_rank(w, err);
	}
	if (w->group.rank > 0)
		return r;
	end = group_end(&w->group, r < 0, r < 0 ? NULL : err);
	return r < 0 ? r : end;
}

/* Nothing that another try would change: a kind of model that is not served, a device that there is not or that cannot
 * do it, a private daemon that may not run. */
static bool cannot_run_here(int r)
{
	return r == -ENOSYS || r == -ENOTSUP || r == -ENODEV;
}

int main(int argc, char **argv)
{
	struct moe_error err = {0};
	struct worker w = {0};
	int r;

	stdio_fill();
	r = options_parse(&w.options, argc, argv);
	if (r != 0)
		return stdout_end("moe-worker", r < 0 ? EXIT_USAGE : EXIT_SUCCESS);
	catch_signals();
	r = run_worker(&w, &err);
	if (r < 0 && w.group.rank == 0) {
		if (!run_interrupted()) {
			fflush(stdout);
			fprintf(stderr, "moe-worker: %s\n", err.text);
			if (r != -ECHILD && r != -ENOSYS)
				spawn_dead(w.spawn);
		}
	}
	close_all(&w);
	if (run_interrupted() && w.group.rank == 0) {
		signal(signalled, SIG_DFL);
		raise(signalled);
	}
	return r == 0 ? EXIT_SUCCESS : cannot_run_here(r) ? EXIT_CANNOT_RUN_HERE : EXIT_FAILURE;
}
