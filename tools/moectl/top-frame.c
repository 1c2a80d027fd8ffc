/* SPDX-License-Identifier: MIT */
#include "top-frame.h"

#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "moectl.h"

#define NODES_MAX 4 /* lines of them in a small terminal */
#define MODELS_MAX 4
#define CELL 40
#define MODEL_MORE 28 /* columns */
#define BAR_MAX 24

/* -- values ------------------------------------------------------------------------------------------------------- */

/* Four digits at most: "0", "12", "9999", "12.3k", "1.23M". */
static void cell_count(char to[CELL], double n)
{
	static const char units[] = "kMGT";
	int unit = -1;

	if (n < 0) {
		snprintf(to, CELL, "-");
		return;
	}
	for (; n >= (unit < 0 ? 9999.5 : 999.5) && unit < 3; unit++)
		n /= 1000;
	if (unit < 0)
		snprintf(to, CELL, "%.0f", n);
	else
		snprintf(to, CELL, "%.*f%c", n < 9.995 ? 2 : n < 99.95 ? 1 : 0, n, units[unit]);
}

static void cell_share(char to[CELL], double share)
{
	snprintf(to, CELL, share < 0 ? "-" : share < 0.9995 ? "%.1f%%" : "%.0f%%", 100 * share);
}

static void cell_gigabytes(char to[CELL], double bytes)
{
	snprintf(to, CELL,
		 bytes < 0          ? "-"
		 : bytes < 0.9995e9 ? "%.3f"
		 : bytes < 99.95e9  ? "%.2f"
				    : "%.0f",
		 bytes / 1e9);
}

/* Seconds of waiting in a second: of several workers they may be more than one. */
static void cell_wait(char to[CELL], double wait)
{
	snprintf(to, CELL, wait < 0 ? "-" : "%.2f", wait);
}

/* The system is asked once for each user, not each second for each session: it opens files for that, or asks a
 * network. Where it could not answer it is asked again. */
static void cell_user(char to[CELL], double number)
{
	static struct {
		char name[CELL];
		uid_t uid;
	} known[64];
	const uid_t uid = (uid_t)number;
	char *name = known[uid % ARRAY_LEN(known)].name;

	if (!*name || known[uid % ARRAY_LEN(known)].uid != uid) {
		const struct passwd *user;

		errno = 0;
		user = getpwuid(uid);
		known[uid % ARRAY_LEN(known)].uid = uid;
		snprintf(name, CELL, "%.0f", number);
		if (user)
			snprintf(name, CELL, "%s", user->pw_name);
		memcpy(to, name, CELL);
		if (!user && errno != 0 && errno != ENOENT)
			*name = '\0';
		return;
	}
	memcpy(to, name, CELL);
}

/* -- lines -------------------------------------------------------------------------------------------------------- */

static bool full(const struct frame *f)
{
	return f->n >= (f->rows ? f->rows : FRAME_ROWS_MAX);
}

__attribute__((format(printf, 3, 4))) static void put(struct frame *f, enum frame_look look, const char *format, ...)
{
	struct frame_line *line = &f->lines[f->n];
	va_list args;

	if (full(f))
		return;
	va_start(args, format);
	vsnprintf(line->text, sizeof line->text, format, args);
	va_end(args);
	line->text[f->columns] = '\0';
	line->look = look;
	f->n++;
}

static void draw_bar(char to[BAR_MAX + 3], unsigned width, double share)
{
	const unsigned on = share <= 0 ? 0 : share >= 1 ? width : (unsigned)(share * width + 0.5);

	to[0] = '[';
	memset(to + 1, '|', on);
	memset(to + 1 + on, ' ', width - on);
	to[width + 1] = ']';
	to[width + 2] = '\0';
}

/* -- columns ------------------------------------------------------------------------------------------------------ */

struct row {
	const struct top_session *session; /* or a model */
	const struct top_model *model;
};

struct column {
	const char *title;
	int width;     /* negative: to the left */
	unsigned rank; /* those of the lowest stay longest */
	void (*cell)(char to[CELL], const struct row *row);
	bool of_models, of_sessions;
};

static const struct top_rates *rates_of(const struct row *r)
{
	return r->session ? &r->session->rates : &r->model->rates;
}

static void column_pid(char to[CELL], const struct row *r)
{
	snprintf(to, CELL, "%.0f", r->session->pid);
}

static void column_user(char to[CELL], const struct row *r)
{
	cell_user(to, r->session->uid);
}

static void column_model(char to[CELL], const struct row *r)
{
	snprintf(to, CELL, "%.*s", CELL - 1, r->session ? r->session->model : r->model->name);
}

static void column_phase(char to[CELL], const struct row *r)
{
	snprintf(to, CELL, "%.*s", CELL - 1, r->session->phase);
}

static void column_sessions(char to[CELL], const struct row *r)
{
	snprintf(to, CELL, "%u", r->model->sessions);
}

static void column_found(char to[CELL], const struct row *r)
{
	cell_share(to, r->model->found);
}

static void column_rate(char to[CELL], const struct row *r)
{
	cell_share(to, rates_of(r)->hit_rate);
}

static void column_hit(char to[CELL], const struct row *r)
{
	cell_count(to, rates_of(r)->pairs[TOP_HIT]);
}

static void column_buffer(char to[CELL], const struct row *r)
{
	cell_count(to, rates_of(r)->pairs[TOP_MISS_BUFFER]);
}

static void column_pool(char to[CELL], const struct row *r)
{
	cell_count(to, rates_of(r)->pairs[TOP_POOL]);
}

static void column_cpu(char to[CELL], const struct row *r)
{
	cell_count(to, rates_of(r)->pairs[TOP_CPU]);
}

static void column_local(char to[CELL], const struct row *r)
{
	cell_count(to, rates_of(r)->pairs[TOP_LOCAL]);
}

static void column_fill(char to[CELL], const struct row *r)
{
	cell_gigabytes(to, rates_of(r)->fill_bytes);
}

static void column_wait(char to[CELL], const struct row *r)
{
	cell_wait(to, rates_of(r)->wait);
}

/* At 80 columns all but the last ones: 79 of a session's. */
static const struct column columns[] = {
	{"PID", 7, 0, column_pid, false, true},       {"USER", -6, 7, column_user, false, true},
	{"MODEL", -10, 3, column_model, true, true},  {"SESSIONS", 8, 6, column_sessions, true, false},
	{"PHASE", -7, 4, column_phase, false, true},  {"HIT", 6, 0, column_rate, true, true},
	{"HIT/s", 5, 2, column_hit, true, true},      {"BUF/s", 5, 8, column_buffer, true, true},
	{"POOL/s", 6, 9, column_pool, true, true},    {"CPU/s", 5, 1, column_cpu, true, true},
	{"GB/s", 5, 2, column_fill, true, true},      {"WAIT", 6, 5, column_wait, true, true},
	{"LOCAL/s", 7, 10, column_local, true, true}, {"FOUND", 6, 11, column_found, true, false},
};
#define COLUMNS (sizeof columns / sizeof *columns)

static unsigned width_of(const struct column *c)
{
	return (unsigned)(c->width < 0 ? -c->width : c->width);
}

/* The columns that there is room for, the most important ones first. */
static unsigned choose(bool sessions, unsigned room)
{
	unsigned used = 0, chosen = 0;

	for (unsigned rank = 0; rank < COLUMNS; rank++)
		for (unsigned i = 0; i < COLUMNS; i++) {
			const unsigned more = width_of(&columns[i]) + (used > 0);

			if (columns[i].rank != rank || !(sessions ? columns[i].of_sessions : columns[i].of_models))
				continue;
			if (used + more > room)
				return chosen;
			used += more;
			chosen |= 1u << i;
		}
	return chosen;
}

/* What room is left the names of models have. */
static unsigned spare(unsigned chosen, unsigned room)
{
	unsigned used = 0;

	for (unsigned i = 0; i < COLUMNS; i++)
		used += chosen >> i & 1 ? width_of(&columns[i]) + (used > 0) : 0;
	return room - used < MODEL_MORE ? room - used : MODEL_MORE;
}

/* A heading where there is no row. */
static void put_row(struct frame *f, unsigned chosen, const struct row *row)
{
	char text[FRAME_COLUMNS_MAX + 1] = "";
	size_t used = 0;

	for (unsigned i = 0; i < COLUMNS; i++) {
		int width = (int)width_of(&columns[i]);
		char cell[CELL];

		if (!(chosen >> i & 1))
			continue;
		if (columns[i].cell == column_model)
			width += (int)spare(chosen, f->columns);
		if (row)
			columns[i].cell(cell, row);
		else
			snprintf(cell, sizeof cell, "%s", columns[i].title);
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%*.*s", used ? " " : "",
					 columns[i].width < 0 ? -width : width, width, cell);
	}
	put(f, row ? FRAME_PLAIN : FRAME_HEADING, "%s", text);
}

/* -- the parts ---------------------------------------------------------------------------------------------------- */

static void draw_daemon(struct frame *f, const struct top_view *v)
{
	char up[SHOW_TEXT], bytes[SHOW_TEXT], eta[SHOW_TEXT], share[CELL];

	put(f, FRAME_TITLE, "moe-expertd %s: %s, up %s  %u models %s  %u sessions", v->version, v->state,
	    show_time(up, v->uptime_ns), v->n_models, show_bytes(bytes, v->bytes), v->n_sessions);
	if (!*v->loading)
		return;
	if (v->loading_eta_ns < 0) {
		put(f, FRAME_PLAIN, "loading, memory is being made: %s", v->loading);
		return;
	}
	cell_share(share, v->loading_share);
	put(f, FRAME_PLAIN, "loading %s, %s to go: %s", share, show_time(eta, v->loading_eta_ns), v->loading);
}

static void draw_load(struct frame *f, const char *what, double load, const char *rest)
{
	const unsigned width = f->columns >= 76 ? BAR_MAX : f->columns >= 60 ? 12 : 6;
	char bar[BAR_MAX + 3], share[CELL];

	draw_bar(bar, width, load);
	cell_share(share, load);
	put(f, FRAME_PLAIN, "%-8s%s %6s  %s", what, bar, share, rest);
}

static void draw_pool(struct frame *f, const struct top_view *v)
{
	const unsigned nodes = v->n_nodes > NODES_MAX && f->rows ? NODES_MAX : v->n_nodes;
	char rest[128], pairs[CELL], what[SHOW_TEXT];

	cell_count(pairs, v->pool_pairs);
	snprintf(rest, sizeof rest, "%s pairs/s, %.0f threads", pairs, v->threads);
	draw_load(f, "pool", v->load, rest);
	for (unsigned i = 0; i < nodes; i++) {
		const struct top_node *n = &v->nodes[i];
		char reads[CELL], copies[CELL];

		cell_gigabytes(reads, n->read_bytes);
		cell_gigabytes(copies, n->copy_bytes);
		snprintf(what, sizeof what, "node %.0f", n->node);
		snprintf(rest, sizeof rest, "%s GB/s computing, %s copying", reads, copies);
		draw_load(f, what, n->load, rest);
	}
	if (nodes < v->n_nodes)
		put(f, FRAME_FAINT, "and %u more nodes", v->n_nodes - nodes);
}

static void draw_models(struct frame *f, const struct top_view *v)
{
	const unsigned n = v->n_models > MODELS_MAX && f->rows ? MODELS_MAX : v->n_models;
	const unsigned chosen = choose(false, f->columns);

	put(f, FRAME_PLAIN, "%s", "");
	if (!v->n_models) {
		put(f, FRAME_PLAIN, "no model is loaded: moectl load PATH");
		return;
	}
	put_row(f, chosen, NULL);
	for (unsigned i = 0; i < n; i++)
		put_row(f, chosen, &(struct row){.model = &v->models[i]});
	if (n < v->n_models)
		put(f, FRAME_FAINT, "and %u more models", v->n_models - n);
}

static void draw_sessions(struct frame *f, const struct top_view *v)
{
	const unsigned chosen = choose(true, f->columns);
	unsigned room, n;

	put(f, FRAME_PLAIN, "%s", "");
	if (!v->n_sessions) {
		put(f, FRAME_PLAIN, "no session");
		return;
	}
	put_row(f, chosen, NULL);
	room = f->rows ? f->rows : FRAME_ROWS_MAX;
	room = room - f->n;
	n = v->n_sessions <= room ? v->n_sessions : room ? room - 1 : 0;
	for (unsigned i = 0; i < n; i++)
		put_row(f, chosen, &(struct row){.session = &v->sessions[i]});
	if (n < v->n_sessions && room)
		put(f, FRAME_FAINT, "and %u more sessions", v->n_sessions - n);
}

void frame_draw(struct frame *f, unsigned width, unsigned rows, const struct top_view *v, const char *notice,
		const char *keys)
{
	const unsigned below = (*notice != '\0') + (keys != NULL);

	f->columns = width < FRAME_COLUMNS_MAX ? width : FRAME_COLUMNS_MAX;
	f->rows = rows < FRAME_ROWS_MAX ? rows : FRAME_ROWS_MAX;
	f->n = 0;
	if (f->rows)
		f->rows = f->rows > below ? f->rows - below : 0;
	if (!rows || f->rows) {
		draw_daemon(f, v);
		draw_pool(f, v);
		draw_models(f, v);
		draw_sessions(f, v);
	}
	f->rows = rows < FRAME_ROWS_MAX ? rows : FRAME_ROWS_MAX;
	while (keys && f->rows && f->n + below < f->rows)
		put(f, FRAME_PLAIN, "%s", "");
	if (*notice)
		put(f, FRAME_WARNING, "%s", notice);
	if (keys)
		put(f, FRAME_FAINT, "%s", keys);
}
