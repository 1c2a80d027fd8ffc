/* SPDX-License-Identifier: MIT */
/*
 * Ranks of one group have the same weights: one that attaches to others of the same shape is refused, to another model
 * warned of, and the ranks that differ are named to it and in the log. A rank without whom a step is agreed on is named
 * there too.
 */
#include <signal.h>
#include <sys/wait.h>

#include "base/util.h"
#include "moe-expert.h"
#include "tests/raw-client.h"

#define GROUP 0xabc

static char folder[TAP_TMP];
static struct moe_client *client;

static void make_model(const char *name, const char *options)
{
	char command[1024];

	snprintf(command, sizeof command,
		 "'%s/tools/moe-mkmodel' --out %s/%s --family mixtral --layers 2 --hidden 64 --inter 64 --heads 2 "
		 "--kv-heads 2 --head-dim 32 --experts 8 --topk 2 --vocab 256 %s >/dev/null",
		 fixture_env("MOE_BUILD"), folder, name, options);
	require(system(command) == 0, "model %s", name);
}

/* Its standard error goes to a file. */
static void start(void)
{
	const char *models[] = {"one", "again", "other", "larger"};
	static char paths[4][128], log[128];
	const char *options[4 * 4 + 1];
	const int err = dup(2);
	int n = 0, fd;

	make_model("one", "--seed 1");
	make_model("other", "--seed 2");
	make_model("larger", "--seed 1 --experts 16");
	for (int i = 0; i < 4; i++) {
		snprintf(paths[i], sizeof paths[i], "%s/%s", folder, i == 1 ? "one" : models[i]);
		options[n++] = "--model";
		options[n++] = paths[i];
		options[n++] = "--name";
		options[n++] = models[i];
	}
	options[n] = NULL;
	snprintf(log, sizeof log, "%s/log", folder);
	fd = open(log, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	require(fd >= 0 && err >= 0 && dup2(fd, 2) == 2, "a log");
	fixture_start(&fixture, NULL, options);
	dup2(err, 2);
	close(err);
	close(fd);
	require(moe_open(&client, fixture.socket, NULL) == 0, "a client");
}

/* How often the log has it. */
static int logged(const char *words)
{
	char path[128], line[2048];
	FILE *in;
	int n = 0;

	snprintf(path, sizeof path, "%s/log", folder);
	in = fopen(path, "re");
	while (in && fgets(line, sizeof line, in))
		n += strstr(line, words) != NULL;
	if (in)
		fclose(in);
	return n;
}

static int try(struct moe_session **ret, const char *model, uint64_t group, uint32_t tp_rank, uint32_t dp_rank,
	       uint32_t dp_size, struct moe_error *err)
{
	const struct moe_attach_params p = {.size = sizeof p,
					    .model = model,
					    .group = group,
					    .tp_rank = tp_rank,
					    .tp_size = 2,
					    .dp_rank = dp_rank,
					    .dp_size = dp_size,
					    .agree_ms = 60000};

	*err = (struct moe_error){0};
	return moe_attach(client, ret, &p, err);
}

static void test_weights(void)
{
	struct moe_session *a, *b, *c;
	struct moe_error err;
	char words[128];

	require(try(&a, "one", GROUP, 0, 0, 0, &err) == 0, "rank 0 attaches to one model %s", err.text);
	snprintf(words, sizeof words, "dp 0 tp 0 ep 0 (pid %d) has 'one'", getpid());
	ok(try(&b, "other", GROUP, 1, 0, 0, &err) == -ESTALE && strstr(err.text, words), "rank 1 to another: %s",
	   err.text);
	ok(logged(words) == 1, "the log has it as well");
	require(try(&b, "one", GROUP, 1, 0, 0, &err) == 0, "to the same one %s", err.text);
	ok(try(&c, "other", GROUP, 0, 1, 0, &err) == -ESTALE && strstr(err.text, "tp 0 ep 0") &&
		   strstr(err.text, "tp 1 ep 0"),
	   "both are named to another data-parallel rank: %s", err.text);
	ok(try(&c, "other", GROUP + 1, 0, 1, 0, &err) == 0, "in another group there is nothing to compare %s",
	   err.text);
	moe_detach(c);
	ok(try(&c, "other", 0, 0, 1, 0, &err) == 0, "nor in none %s", err.text);
	moe_detach(c);
	ok(try(&c, "again", GROUP, 0, 1, 0, &err) == 0, "the same weights under another name are the same %s",
	   err.text);
	moe_detach(c);
	ok(try(&c, "larger", GROUP, 0, 0, 0, &err) == 0, "a model of another shape is let in %s", err.text);
	ok(logged("it is let in") == 1, "and warned of");
	moe_detach(c);
	moe_detach(a);
	moe_detach(b);
	ok(try(&c, "other", GROUP, 0, 0, 0, &err) == 0, "when they have left the group is another one %s", err.text);
	moe_detach(c);
}

static void test_agreeing(void)
{
	struct moe_session *a, *b;
	struct moe_error err;

	require(try(&a, "one", GROUP, 0, 0, 2, &err) == 0, "one that agrees on phases %s", err.text);
	ok(try(&b, "again", GROUP, 0, 1, 2, &err) == -EXDEV && strstr(err.text, "loaded twice"),
	   "under another name nobody would find it: %s", err.text);
	moe_detach(a);
}

/* A rank that is killed between two steps. */
static void test_lost(void)
{
	struct moe_agreement agreed;
	struct moe_session *a;
	struct moe_error err;
	char words[160];
	int pipes[2], r;
	char byte;
	pid_t pid;

	require(pipe(pipes) == 0, "a pipe");
	pid = fork();
	if (pid == 0) {
		struct moe_session *b;

		moe_open(&client, fixture.socket, NULL);
		r = moe_attach(client, &b,
			       &(struct moe_attach_params){.size = sizeof(struct moe_attach_params),
							   .model = "one",
							   .group = GROUP,
							   .dp_rank = 1,
							   .dp_size = 2},
			       &err);
		r = write(pipes[1], r == 0 ? "y" : "n", 1);
		while (r > 0)
			pause();
		_exit(1);
	}
	require(read(pipes[0], &byte, 1) == 1 && byte == 'y', "another process is rank 1");
	require(moe_attach(client, &a,
			   &(struct moe_attach_params){.size = sizeof(struct moe_attach_params),
						       .model = "one",
						       .group = GROUP,
						       .dp_size = 2,
						       .agree_ms = 60000},
			   &err) == 0,
		"this one rank 0 %s", err.text);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(moe_agree(a, MOE_STEP_DECODE, 1, &agreed, &err) == -EOWNERDEAD, "it is killed: %s", err.text);
	snprintf(words, sizeof words, "data-parallel rank 1 of 2 (tensor rank 0, pid %d) has ended before step 1", pid);
	ok(logged(words) == 1, "the log names it");
	ok(moe_agree(a, MOE_STEP_DECODE, 1, &agreed, &err) == 0 && logged("has ended before") == 1, "once %s",
	   err.text);
	moe_detach(a);
	close(pipes[0]);
	close(pipes[1]);
}

int main(void)
{
	char command[96];

	require(mkdtemp(tap_tmp(folder, "moe-group.XXXXXX")), "a folder");
	start();
	test_weights();
	test_agreeing();
	test_lost();
	moe_close(client);
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	snprintf(command, sizeof command, "rm -rf %s", folder);
	ok(system(command) == 0, "nothing is left");
	return tap_done();
}
