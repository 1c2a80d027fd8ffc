/* SPDX-License-Identifier: MIT */
/* moectl trace: what the routers of workers choose, recorded by the daemon. */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "output.h"

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	interrupted = 1;
}

/* Of moe_trace, a few times a second. */
struct watch {
	const char *socket;
	bool terminal, stopped;
};

static void watch_progress(const struct moe_progress *p, void *userdata)
{
	struct watch *w = userdata;
	struct moe_client *client;
	char bytes[SHOW_TEXT], time[SHOW_TEXT];

	if (w->terminal)
		fprintf(stderr, "\r\033[K%s in %s; Ctrl-C ends it", show_bytes(bytes, (double)p->done_bytes),
			show_time(time, (double)p->elapsed_ns));
	if (!interrupted || w->stopped || moe_open(&client, w->socket, NULL) < 0)
		return;
	w->stopped = moe_trace_stop(client, NULL) == 0;
	moe_close(client);
}

/* A number with K, M, G or T behind it. */
static bool parse_number(const char *text, uint64_t *ret)
{
	static const char units[] = "KMGT";
	const char *unit;
	char *end;

	if (!text)
		return true;
	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (end == text || errno || *text == '-')
		return false;
	unit = *end ? strchr(units, *end) : NULL;
	if (unit) {
		const unsigned int shift = 10 * (unsigned int)(unit - units + 1);

		if (*ret > UINT64_MAX >> shift)
			return false;
		*ret <<= shift;
		end++;
	}
	return !*end && *ret > 0;
}

static int wrong_option(const char *option, const char *expected)
{
	fprintf(stderr, "moectl: %s takes %s; see moectl trace --help\n", option, expected);
	return EXIT_USAGE;
}

static bool parse_seconds(const char *text, uint64_t *ret_ms)
{
	char *end;
	double seconds;

	if (!text)
		return true;
	seconds = strtod(text, &end);
	if (end == text || *end || !(seconds >= 0.001 && seconds <= 1e9))
		return false;
	*ret_ms = (uint64_t)(seconds * 1000);
	return true;
}

static void name_file(char *to, size_t size)
{
	const time_t now = time(NULL);
	struct tm tm;

	localtime_r(&now, &tm);
	strftime(to, size, "moe-%Y%m%d-%H%M%S.moetrace", &tm);
}

static const char *end_word(enum moe_trace_ending end)
{
	static const char *const words[] = {"stopped", "steps", "seconds", "max-bytes"};

	return (size_t)end < ARRAY_LEN(words) ? words[end] : "other";
}

static void print_result(const struct arguments *arg, const char *path, const struct moe_trace_result *t)
{
	char bytes[SHOW_TEXT];

	if (arg->json) {
		json_t *o = json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:s}", "file", text_json(path), "bytes",
				      (json_int_t)t->bytes, "sessions", (json_int_t)t->sessions, "routes",
				      (json_int_t)t->routes, "steps", (json_int_t)t->steps, "lost", (json_int_t)t->lost,
				      "end", end_word(t->end));

		print_json(o);
		json_decref(o);
		return;
	}
	printf("%s: %s, %llu routes in %llu steps of %u sessions", path, show_bytes(bytes, (double)t->bytes),
	       (unsigned long long)t->routes, (unsigned long long)t->steps, t->sessions);
	if (t->lost)
		printf(", %llu routes lost", (unsigned long long)t->lost);
	printf("\n");
	if (t->sessions == 0)
		printf("No session has routed anything: is there one (moectl sessions), and is its library as new as "
		       "the daemon?\n");
}

/* The file, which nobody's recording is in yet. *ret_ours: it was not there before. -1 after an error. */
static int open_empty(const char *path, bool *ret_ours, struct moe_error *err)
{
	struct stat st;
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	*ret_ours = fd >= 0;
	if (fd < 0 && errno == EEXIST)
		fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) {
		moe_error_sys(err, -errno, "%s", path);
	} else if (fstat(fd, &st) == 0 && st.st_size > 0) {
		moe_error_set(err, -EEXIST,
			      "%s: %lld bytes found, an empty file or none expected: remove it, or give another "
			      "one with --output",
			      path, (long long)st.st_size);
		close(fd);
		fd = -1;
	}
	return fd;
}

/* The first signal ends the recording in order, the next one moectl: the daemon may be silent. */
static int record_to(struct moe_client *client, const char *path, const struct moe_trace_params *params,
		     struct watch *watch, struct moe_trace_result *result, struct moe_error *err)
{
	const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_RESETHAND};
	struct stat st;
	bool ours;
	const int fd = open_empty(path, &ours, err);
	int r;

	if (fd < 0)
		return err->code;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	r = moe_trace(client, fd, params, watch_progress, watch, result, err);
	if (r < 0 && ours && fstat(fd, &st) == 0 && st.st_size == 0)
		unlink(path);
	close(fd);
	return r;
}

static int record(const struct arguments *arg, const char *path, const struct moe_trace_params *params)
{
	struct watch watch = {.socket = arg->socket, .terminal = isatty(STDERR_FILENO) && !arg->json};
	struct long_wait wait = {.arg = arg, .leave = "Ctrl-C twice ends moectl", .terminal = watch.terminal};
	struct moe_trace_result result;
	struct moe_error err = {0};
	struct moe_client *client;
	int r = open_for_long(&client, &wait, &err);

	if (r == 0) {
		r = record_to(client, path, params, &watch, &result, &err);
		moe_close(client);
	}
	if (watch.terminal)
		fputs("\r\033[K", stderr);
	if (r < 0)
		return fail(&err);
	print_result(arg, path, &result);
	return EXIT_DONE;
}

int trace_record(const struct arguments *arg)
{
	struct moe_trace_params params = {.size = sizeof params, .model = arg->model};
	char named[64];

	if (!parse_number(arg->steps, &params.max_steps))
		return wrong_option("--steps", "a number from 1 on");
	if (!parse_number(arg->max_bytes, &params.max_bytes))
		return wrong_option("--max-bytes", "a number from 1 on, with K, M, G or T for powers of 1024");
	if (!parse_seconds(arg->seconds, &params.max_ms))
		return wrong_option("--seconds", "a number from 0.001 on");
	name_file(named, sizeof named);
	return record(arg, arg->output ? arg->output : named, &params);
}

static int stop(struct moe_client *client, const struct arguments *arg, struct moe_error *err)
{
	return moe_trace_stop(client, err);
}

int trace_stop(const struct arguments *arg)
{
	return tell(arg, stop);
}

/* What the form has no words for is lost, and said. */
static void tell_lost(const struct trace_case *one, const char *form)
{
	if (one->trace.sequences > 1 && (strcmp(form, "jsonl") == 0 || strcmp(form, "json") == 0))
		fprintf(stderr,
			"moectl: %s: %u sequences become one: %s does not tell where one begins; binary and moetrc "
			"do\n",
			one->id, one->trace.sequences, form);
}

static int write_trace(const char *path, const struct trace_case *one, const char *form, struct moe_error *err)
{
	struct output out;
	int r = output_open(&out, path), end;

	if (r < 0)
		return moe_error_sys(err, r, "%s: cannot be written", path);
	r = trace_write(out.to, one, form, err);
	end = output_end(&out, r);
	if (r == 0 && end < 0)
		return moe_error_sys(err, end, "%s: cannot be written", path);
	if (r == 0)
		tell_lost(one, form);
	return r;
}

static int write_map(const struct arguments *arg, const char *from, const struct trace_case *one, const char *path)
{
	json_t *loads = trace_loads(&one->trace);
	struct moe_error err = {0};

	if (loads)
		return plan_write_map(arg, from, loads, path);
	moe_error_set(&err, -ENOMEM, "%s: no memory", one->id);
	return fail(&err);
}

int trace_convert(const struct arguments *arg, const char *from, const char *path)
{
	const bool map = strcmp(arg->to, "expert-map") == 0;
	struct trace_file file = {0};
	struct moe_error err = {0};
	int r, status = EXIT_DONE;

	if (!map && !trace_has_form(arg->to))
		return wrong_option("--to", trace_forms());
	r = trace_file_read(&file, from, arg->together, &err);
	if (r == 0 && file.n != 1)
		r = moe_error_set(&err, -EINVAL, "%s: %u cases found, one trace expected", from, file.n);
	if (r == 0 && map)
		status = write_map(arg, from, &file.cases[0], path);
	else if (r == 0)
		r = write_trace(path, &file.cases[0], arg->to, &err);
	trace_file_free(&file);
	return r < 0 ? fail(&err) : status;
}

static bool is_part(const char *what)
{
	return strcmp(what, "record") == 0 || strcmp(what, "stop") == 0 || strcmp(what, "show") == 0 ||
	       strcmp(what, "convert") == 0;
}

/* What each of them has a use for, of the options of all. */
static bool takes_options(const struct arguments *arg, const char *what)
{
	const char *options = strcmp(what, "record") == 0    ? "jLOSUB"
			      : strcmp(what, "show") == 0    ? "jt"
			      : strcmp(what, "convert") == 0 ? "AtPRGNDF"
							     : "";

	for (const char *given = arg->given; *given; given++)
		if (*given != 's' && !strchr(options, *given)) {
			fprintf(stderr, "moectl: trace %s does not take %s; see moectl trace --help\n", what,
				arguments_option(*given));
			return false;
		}
	return true;
}

int verb_trace(const struct arguments *arg)
{
	const char *what = arg->n > 0 ? arg->words[0] : "";

	if (is_part(what) && !takes_options(arg, what))
		return EXIT_USAGE;
	if (strcmp(what, "record") == 0 && arg->n == 1)
		return trace_record(arg);
	if (strcmp(what, "stop") == 0 && arg->n == 1)
		return trace_stop(arg);
	if (strcmp(what, "show") == 0 && arg->n == 2)
		return trace_show(arg, arg->words[1]);
	if (strcmp(what, "convert") == 0 && arg->n == 3 && arg->to)
		return trace_convert(arg, arg->words[1], arg->words[2]);
	fprintf(stderr, "moectl: usage: trace record, trace stop, trace show FILE or trace convert FROM TO --to FORM; "
			"see moectl trace --help\n");
	return EXIT_USAGE;
}
