/* SPDX-License-Identifier: MIT */
/*
 * top-screen - `moectl top` on a terminal of its own (a pty), beside a real daemon: what stands on the screen, keys,
 * another size, a daemon that goes and comes back, and a terminal that is as it was when it ends.
 *
 * The terminal is a VT52, the simplest that can place its cursor: what it shows is worked out here, character by
 * character.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/util.h"
#include "tests/fixture.h"

#define ROWS_MAX 60
#define COLUMNS_MAX 200

struct terminal {
	int fd, slave; /* slave: held open, to look at its settings */
	pid_t pid;
	unsigned rows, columns, row, column;
	char cells[ROWS_MAX][COLUMNS_MAX + 1];
	char pending[8]; /* of an escape sequence */
	unsigned n_pending;
	bool beyond; /* something was written beyond the last column or row */
	char all[1 << 20];
	size_t n_all; /* what was sent, for terminals that are not shown */
	struct termios before;
};

static struct terminal t;

static void clear_from(unsigned row, unsigned column)
{
	for (; row < ROWS_MAX; row++, column = 0)
		memset(t.cells[row] + column, ' ', COLUMNS_MAX - column);
}

/* False: more is to come. */
static bool escape(void)
{
	const char *p = t.pending;

	if (t.n_pending < 2)
		return false;
	switch (p[1]) {
	case 'Y':
		if (t.n_pending < 4)
			return false;
		t.row = (unsigned char)p[2] - (unsigned)' ';
		t.column = (unsigned char)p[3] - (unsigned)' ';
		t.beyond |= t.row >= t.rows || t.column >= t.columns;
		break;
	case 'H':
		t.row = t.column = 0;
		break;
	case 'J':
		clear_from(t.row, t.column);
		break;
	case 'K':
		memset(t.cells[t.row] + t.column, ' ', COLUMNS_MAX - t.column);
		break;
	case 'A':
		t.row -= t.row > 0;
		break;
	case 'B':
		t.row++;
		break;
	case 'C':
		t.column++;
		break;
	case 'D':
		t.column -= t.column > 0;
		break;
	default:
		break;
	}
	return true;
}

static void show(char c)
{
	if (t.n_pending) {
		t.pending[t.n_pending++] = c;
		if (escape() || t.n_pending == sizeof t.pending)
			t.n_pending = 0;
	} else if (c == '\033') {
		t.pending[t.n_pending++] = c;
	} else if (c == '\r') {
		t.column = 0;
	} else if (c == '\n') {
		t.row += t.row + 1 < t.rows;
	} else if (c == '\b') {
		t.column -= t.column > 0;
	} else if (c >= ' ') {
		t.beyond |= t.row >= t.rows || t.column >= t.columns;
		if (t.row < ROWS_MAX && t.column < COLUMNS_MAX)
			t.cells[t.row][t.column] = c;
		t.column++;
	}
}

/* Takes what comes within a moment; false when the program has closed the terminal. */
static bool pump(void)
{
	struct pollfd fd = {.fd = t.fd, .events = POLLIN};
	char bytes[4096];
	ssize_t n;

	if (poll(&fd, 1, 20) <= 0)
		return true;
	n = read(t.fd, bytes, sizeof bytes);
	for (ssize_t i = 0; i < n; i++) {
		show(bytes[i]);
		if (t.n_all + 1 < sizeof t.all)
			t.all[t.n_all++] = bytes[i];
	}
	return n > 0 || errno == EAGAIN;
}

static bool shows(const char *text)
{
	for (unsigned i = 0; i < t.rows; i++)
		if (strstr(t.cells[i], text))
			return true;
	return false;
}

static bool comes(const char *text)
{
	const uint64_t began = now_ns();

	while (!shows(text)) {
		if (!pump() || now_ns() - began > TAP_PATIENCE_S * 1000000000ull)
			break;
	}
	if (!shows(text))
		for (unsigned i = 0; i < t.rows; i++)
			printf("# |%.*s|\n", (int)t.columns, t.cells[i]);
	return shows(text);
}

static void run(const char *term, const char *no_color, unsigned columns, unsigned rows, const char *socket)
{
	const struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
	char program[4096];
	int master, slave;

	memset(&t, 0, sizeof t);
	t.rows = rows;
	t.columns = columns;
	clear_from(0, 0);
	snprintf(program, sizeof program, "%s/tools/moectl", fixture_env("MOE_BUILD"));
	require(openpty(&master, &slave, NULL, NULL, &size) == 0, "a terminal of %ux%u, %s", columns, rows, term);
	tcgetattr(slave, &t.before);
	t.pid = fork();
	if (t.pid == 0) {
		setsid();
		ioctl(slave, TIOCSCTTY, 0);
		dup2(slave, 0);
		dup2(slave, 1);
		dup2(slave, 2);
		close(master);
		setenv("TERM", term, 1);
		if (no_color)
			setenv("NO_COLOR", no_color, 1);
		else
			unsetenv("NO_COLOR");
		execl(program, program, "--socket", socket, "top", "--watch=0.05", NULL);
		_exit(127);
	}
	t.fd = master;
	t.slave = slave;
}

/* Its exit code, or the signal + 128; what it writes at the end is taken. */
static int ends(void)
{
	const uint64_t began = now_ns();
	int status = 0;

	while (waitpid(t.pid, &status, WNOHANG) == 0) {
		pump();
		if (now_ns() - began > TAP_PATIENCE_S * 1000000000ull) {
			kill(t.pid, SIGKILL);
			waitpid(t.pid, &status, 0);
			return -1;
		}
	}
	fcntl(t.fd, F_SETFL, O_NONBLOCK);
	while (pump() && poll(&(struct pollfd){.fd = t.fd, .events = POLLIN}, 1, 0) > 0)
		continue;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool restored(void)
{
	struct termios now;

	return tcgetattr(t.slave, &now) == 0 && now.c_lflag == t.before.c_lflag && now.c_iflag == t.before.c_iflag &&
	       now.c_oflag == t.before.c_oflag;
}

static void leave(void)
{
	close(t.fd);
	close(t.slave);
}

static void type(char key)
{
	if (write(t.fd, &key, 1) != 1)
		ok(false, "a key is typed");
}

/* -- tests -------------------------------------------------------------------------------------------------------- */

static void test_keys(const char *socket)
{
	run("vt52", NULL, 80, 24, socket);
	ok(comes("moe-expertd ") && comes("tinymoe") && comes("no session"),
	   "daemon, model and sessions are on the screen");
	ok(comes("node 0") && comes("computing"), "and the nodes");
	ok(strstr(t.cells[23], "q quit  s sort: pairs  p pause"), "the keys stand in the last line");
	type('s');
	ok(comes("sort: hit rate"), "s sorts by something else");
	type('p');
	ok(comes("PAUSED"), "p pauses");
	type('p');
	ok(comes("p pause "), "and goes on");
	ok(!t.beyond, "nothing was written beyond 80x24");
	type('q');
	ok(ends() == 0, "q ends it with 0");
	ok(restored(), "the terminal is as it was");
	leave();
}

static void test_resize(const char *socket)
{
	const struct winsize large = {.ws_row = 30, .ws_col = 100};

	run("vt52", NULL, 40, 10, socket);
	ok(comes("tinymoe") && comes("q quit"), "at 40x10 there is the model");
	ok(strstr(t.cells[9], "q quit") && !t.beyond, "and nothing beyond it");
	t.rows = 30;
	t.columns = 100;
	ioctl(t.fd, TIOCSWINSZ, &large);
	while (!strstr(t.cells[29], "q quit") && pump())
		continue;
	ok(strstr(t.cells[29], "every 0.05 s") && comes("FOUND") && !t.beyond, "at 100x30 there is more");
	kill(t.pid, SIGTERM);
	ok(ends() == 0, "SIGTERM ends it");
	ok(restored(), "the terminal is as it was");
	leave();
}

static void test_colours(const char *socket)
{
	run("xterm-256color", NULL, 80, 24, socket);
	while (!memmem(t.all, t.n_all, "q quit", 6) && pump())
		continue;
	type('q');
	ok(ends() == 0 && restored(), "on a terminal with colours it ends as well");
	ok(memmem(t.all, t.n_all, "\033[36m", 5), "it has colours there");
	ok(memmem(t.all, t.n_all, "\033[?1049h", 8) && memmem(t.all, t.n_all, "\033[?1049l", 8),
	   "and the screen of before comes back");
	leave();
	run("xterm-256color", "1", 80, 24, socket);
	while (!memmem(t.all, t.n_all, "q quit", 6) && pump())
		continue;
	type('q');
	ok(ends() == 0 && !memmem(t.all, t.n_all, "\033[36m", 5), "NO_COLOR: none");
	leave();
	run("no-such-terminal", NULL, 80, 24, socket);
	ok(ends() == 1 && memmem(t.all, t.n_all, "--once", 6), "a terminal that nobody knows: a word, and 1");
	leave();
	run("dumb", NULL, 80, 24, socket);
	ok(ends() == 1 && memmem(t.all, t.n_all, "--once", 6), "one whose cursor stays where it is: the same");
	leave();
}

static void test_without_daemon(struct fixture *f, const char *socket)
{
	const char *const options[] = {"--socket", socket, NULL};

	run("vt52", NULL, 80, 24, socket);
	ok(comes("tinymoe"), "a screen while the daemon goes");
	ok(fixture_stop(f) == 0 && comes("NO DAEMON"), "the daemon is gone: it says so");
	fixture_start(f, fixture_sample(), options);
	ok(comes("the daemon is back"), "it is back: it says so");
	kill(f->pid, SIGSTOP);
	ok(comes("NO ANSWER"), "the daemon hangs: it says so");
	type('q');
	ok(ends() == 0 && restored(), "q ends it then, too");
	leave();
	kill(f->pid, SIGCONT);
}

int main(void)
{
	char folder[TAP_TMP], socket[96];
	const char *const options[] = {"--socket", socket, NULL};
	struct fixture f;

	require(mkdtemp(tap_tmp(folder, "moe-top-XXXXXX")), "a folder");
	snprintf(socket, sizeof socket, "%s/socket", folder);
	fixture_start(&f, fixture_sample(), options);
	test_keys(socket);
	test_resize(socket);
	test_colours(socket);
	test_without_daemon(&f, socket);
	ok(fixture_stop(&f) == 0, "the daemon ends");
	ok(rmdir(folder) == 0, "nothing is left");
	return tap_done();
}
