/* SPDX-License-Identifier: MIT */
/*
 * faults-library - whatever a worker's process is refused, once or for ever: the library's calls fail with words and
 * leave nothing behind, or succeed with right results; none hangs, and none ends the worker. As test-faults, but the
 * program is tests/faults/worker.c, and its daemon is not harmed.
 */
#include "tests/faults/plan.h"

static struct fixture daemon_of_all;

static void become_worker(const struct run *run)
{
	char program[PATH_MAX], path[PATH_MAX];

	snprintf(program, sizeof program, "%s/tests/faults-worker", fixture_env("MOE_BUILD"));
	path_in(path, run, "words");
	dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
	dup2(STDOUT_FILENO, STDERR_FILENO);
	set_faults(run);
	execl(program, program, daemon_of_all.socket, model_path, (char *)NULL);
	_exit(127);
}

/* Its first line. */
static void copy_words(struct run *run)
{
	char path[PATH_MAX], line[256] = "no words";
	FILE *f;

	path_in(path, run, "words");
	f = fopen(path, "re");
	if (f && fgets(line, sizeof line, f))
		line[strcspn(line, "\n")] = '\0';
	if (f)
		fclose(f);
	wrong(run, "%s", line);
}

static enum outcome work_once(struct run *run)
{
	int status;

	tap_tmp(run->f.folder, "moe-test-XXXXXX");
	run->ready_fd = -1;
	if (!mkdtemp(run->f.folder))
		return BAD;
	run->f.pid = fork();
	if (run->f.pid == 0)
		become_worker(run);
	waitpid(run->f.pid, &status, 0);
	if (WIFSIGNALED(status))
		wrong(run, WTERMSIG(status) == SIGALRM ? "hangs (signal %d)" : "killed by signal %d", WTERMSIG(status));
	else if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3)
		copy_words(run);
	else if (is_empty(run, "report"))
		wrong(run, "no report");
	copy_line(run, "report", "left ");
	add_callers(run);
	run->fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (!run->fault)
		return run->why[0] || !run->fine ? BAD : NO_CHANGE;
	clean_up(run);
	return run->why[0] ? BAD : run->fine ? NO_CHANGE : REFUSED_SOME;
}

static enum outcome work_first(struct run *run)
{
	fixture_start(&daemon_of_all, model_path, (const char *const[]){"--threads", "1", "--name", "small", NULL});
	story = work_once;
	return work_once(run);
}

/* Nobody is there any more. A model whose unloading was refused may be. */
static void end(void)
{
	uint64_t end = 0;

	fixture = daemon_of_all;
	while (asked("status", "sessions") != 0 && tap_wait(&end))
		;
	ok(asked("status", "sessions") == 0, "the daemon has no session");
	ok(fixture_stop(&daemon_of_all) == 0, "and ends, its books balanced");
}

int main(void)
{
	setenv("FAULTS", "all", 0); /* they are few */
	story = work_first;
	at_end = end;
	return faults_main(LIFE_PLAIN);
}
