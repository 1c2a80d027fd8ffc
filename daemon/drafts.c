/* SPDX-License-Identifier: MIT */
#include "daemon/drafts.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "daemon/documents.h"
#include "daemon/exporter.h"
#include "daemon/handout.h"
#include "daemon/peer-messages.h"
#include "daemon/peer.h"
#include "daemon/rest.h"

#define STACK_BYTES (256u << 10)
#define ANSWERS_TURN 16

void drafts_want(struct drafts *d, uint32_t what)
{
	d->wanted |= 1u << what;
}

/* -- the scribe --------------------------------------------------------------------------------------------------- */

static int flush(struct scribe *s)
{
	const int r = handout_append(s->handout, s->buffer, s->filled);

	s->filled = 0;
	return r;
}

/* For json_dump_callback: 0, or -1. */
static int take_text(const char *text, size_t bytes, void *userdata)
{
	struct scribe *s = userdata;

	while (bytes > 0) {
		const size_t n = MIN(bytes, sizeof s->buffer - s->filled);

		memcpy(s->buffer + s->filled, text, n);
		s->filled += n;
		text += n;
		bytes -= n;
		if (s->filled == sizeof s->buffer && flush(s) < 0)
			return -1;
	}
	return 0;
}

/* Without a copy of all of it: what a thread frees stays with that thread's part of the heap. */
static void write_text(struct scribe *s)
{
	int r = handout_open(s->handout);

	if (r >= 0)
		r = json_dump_callback(s->document, take_text, s, document_flags(s->what)) < 0 ? -ENOMEM : flush(s);
	if (r >= 0)
		r = handout_publish(s->handout);
	json_decref(s->document);
	if (r < 0)
		handout_fail(s->handout, moe_error_sys(&s->err, r, "query: cannot write the document"));
}

static void *run_scribe(void *arg)
{
	struct scribe *s = arg;

	write_text(s);
	atomic_store(&s->done, true);
	loop_wake(s->loop);
	return NULL;
}

/* False: there is no memory, or no thread. */
static bool start_scribe(struct scribe *s)
{
	pthread_attr_t attr;
	sigset_t all;
	int r;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setsigmask_np(&attr, &all);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	r = pthread_create(&s->thread, &attr, run_scribe, s);
	pthread_attr_destroy(&attr);
	return r == 0;
}

/* -- whom it is for ----------------------------------------------------------------------------------------------- */

/* At most so many of those who wait. True: that were all of them. */
static bool answer_some(struct service *s, uint32_t most, struct handout *h, const struct moe_error *err)
{
	struct peer *next;

	for (struct peer *peer = s->peers; peer; peer = next) {
		next = peer->next;
		if (!peer->drafted)
			continue;
		if (most-- == 0)
			return false;
		peer_send_document(peer, h, err);
	}
	bus_send_document(s->bus, h->fd, h->bytes, err);
	return true;
}

static void fail(struct service *s, int r, const struct moe_error *err)
{
	struct documents none = {0};
	struct handout nothing = {.fd = r, .readonly = -1};

	if (s->drafts.what == DOCUMENT_FIGURES)
		exporter_give(s->exporter, &none);
	else
		answer_some(s, UINT32_MAX, &nothing, err);
}

/* -- making one --------------------------------------------------------------------------------------------------- */

/* Figures have every second turn, since a scraper does not wait for ever; the others go round. */
static uint32_t choose(struct drafts *d)
{
	const bool figures = d->wanted >> DOCUMENT_FIGURES & 1;

	if (figures && (d->what != DOCUMENT_FIGURES || d->wanted == 1u << DOCUMENT_FIGURES))
		return DOCUMENT_FIGURES;
	do
		d->turn = d->turn % (DOCUMENT_KINDS - 1) + 1;
	while (!(d->wanted >> d->turn & 1));
	return d->turn;
}

static void begin_document(struct service *s)
{
	struct drafts *d = &s->drafts;
	struct moe_error err = {0};
	const int r = document_begin(&d->document, s, d->what, &err);

	if (r < 0)
		fail(s, r, &err);
}

static void begin(struct service *s)
{
	struct drafts *d = &s->drafts;

	d->what = choose(d);
	d->wanted &= ~(1u << d->what);
	for (struct peer *peer = s->peers; peer; peer = peer->next)
		peer->drafted = peer->asks && peer->asks == d->what;
	bus_begin_document(s->bus, d->what);
	d->gathers = d->what == MOE_QUERY_HEAT;
	if (d->gathers)
		heat_round_begin(&s->heat_round, s->sessions);
	else
		begin_document(s);
}

/* The turns between do it. */
static void gather(struct service *s)
{
	s->drafts.gathers = s->heat_round.next;
	if (!s->drafts.gathers)
		begin_document(s);
}

static struct scribe *scribe_free(struct scribe *scribe, struct holes *holes)
{
	if (scribe && scribe->handout)
		handout_drop(scribe->handout, holes, NULL);
	free(scribe);
	return NULL;
}

static struct scribe *scribe_new(void)
{
	struct scribe *scribe = calloc(1, sizeof *scribe);

	if (scribe)
		scribe->handout = handout_new();
	return scribe && scribe->handout ? scribe : scribe_free(scribe, NULL);
}

/* It has written: those who wait get it, some at a time. */
static void give_out(struct service *s, struct scribe *scribe)
{
	if (!answer_some(s, ANSWERS_TURN, scribe->handout, &scribe->err))
		return;
	s->drafts.scribe = NULL;
	scribe_free(scribe, s->holes);
}

static void hand_to_scribe(struct service *s, json_t *document)
{
	struct drafts *d = &s->drafts;
	struct moe_error err = {0};
	struct scribe *scribe = document ? scribe_new() : NULL;

	if (!scribe) {
		json_decref(document);
		fail(s, moe_error_sys(&err, -ENOMEM, "query"), &err);
		return;
	}
	scribe->loop = s->loop;
	scribe->document = document;
	scribe->what = d->what;
	d->scribe = scribe;
	if (start_scribe(scribe))
		return;
	write_text(scribe); /* without a thread the rings wait */
	scribe->joined = true;
	atomic_store(&scribe->done, true);
}

static void end(struct service *s)
{
	struct drafts *d = &s->drafts;
	struct document *document = d->document;
	struct documents figures;

	d->document = NULL;
	if (d->what != DOCUMENT_FIGURES) {
		hand_to_scribe(s, document_end_one(document));
		return;
	}
	document_end(document, &figures);
	exporter_give(s->exporter, &figures);
}

static void piece(struct service *s)
{
	struct drafts *d = &s->drafts;

	if (d->gathers)
		gather(s);
	else if (!d->document)
		begin(s);
	else if (!document_go_on(d->document))
		end(s);
}

bool drafts_turn(struct service *s, bool busy)
{
	struct drafts *d = &s->drafts;
	uint64_t now;

	if (d->scribe) {
		if (!atomic_load(&d->scribe->done))
			return false;
		now = now_ns();
		if (busy && now < d->rest_ns)
			return true;
		if (!d->scribe->joined)
			pthread_join(d->scribe->thread, NULL);
		d->scribe->joined = true;
		give_out(s, d->scribe);
		d->rest_ns = rest_after(now);
		return true;
	}
	if (!d->document && exporter_wants(s->exporter))
		drafts_want(d, DOCUMENT_FIGURES);
	if (d->ended || (!d->document && !d->gathers && !d->wanted))
		return false;
	now = now_ns();
	if (busy && now < d->rest_ns)
		return true;
	piece(s);
	d->rest_ns = rest_after(now);
	return true;
}

/* -- what goes away meanwhile ------------------------------------------------------------------------------------- */

void drafts_see_end(struct drafts *d, struct session *session)
{
	if (d->document)
		document_see_end(d->document, session);
}

void drafts_forget(struct drafts *d, const struct session *session)
{
	if (d->document)
		document_forget(d->document, session);
}

static void drop(struct drafts *d)
{
	struct documents done;

	if (!d->document)
		return;
	document_end(d->document, &done);
	documents_free(&done);
	d->document = NULL;
}

/* Those who wait for it are in the next one, too. */
void drafts_restart(struct drafts *d)
{
	if (!d->document)
		return;
	drop(d);
	drafts_want(d, d->what);
}

void drafts_end(struct drafts *d)
{
	drop(d);
	d->ended = true;
	if (!d->scribe)
		return;
	if (!d->scribe->joined)
		pthread_join(d->scribe->thread, NULL);
	d->scribe = scribe_free(d->scribe, NULL);
}
