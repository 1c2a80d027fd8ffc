/* SPDX-License-Identifier: MIT */
/*
 * bus-documents - calls that wait for a document, which is made between the reactor's turns (drafts.h).
 *
 * Law: a call is answered once, with the document that was begun after it came, or with why there is none; or its link
 * is broken. So many wait at a time, so many of one connection; a call beyond is refused. One is answered in a turn,
 * when the bus has taken the answers before: so at most two copies of a document are here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "daemon/bus-internal.h"

#define READERS_MAX 256
#define READERS_CALLER 8

struct bus_reader {
	sd_bus_message *call;
	uint32_t what;
	bool drafted; /* gets what is being made now */
	struct bus_reader *next;
};

static struct bus_reader *reader_free(struct bus *b, struct bus_reader *reader)
{
	struct bus_reader *next = reader->next;

	sd_bus_message_unref(reader->call);
	free(reader);
	b->n_readers--;
	return next;
}

static int check_room(const struct bus *b, const char *sender, struct moe_error *err)
{
	uint32_t own = 0;

	if (!sender)
		return moe_error_sys(err, -EPERM, "document");
	for (const struct bus_reader *reader = b->readers; reader; reader = reader->next)
		own += strcmp(sd_bus_message_get_sender(reader->call), sender) == 0;
	if (b->n_readers < READERS_MAX && own < READERS_CALLER)
		return 0;
	return moe_error_set(err, -EBUSY,
			     "%u calls wait for documents, %u of them from here; at most %d and %d: wait for their "
			     "answers",
			     b->n_readers, own, READERS_MAX, READERS_CALLER);
}

static int add_reader(struct bus *b, sd_bus_message *call, uint32_t what, sd_bus_error *ret_error)
{
	struct moe_error err;
	struct bus_reader *reader;
	const int r = check_room(b, sd_bus_message_get_sender(call), &err);

	if (r < 0)
		return bus_error(ret_error, r, &err);
	reader = malloc(sizeof *reader);
	if (!reader)
		return bus_error(ret_error, moe_error_sys(&err, -ENOMEM, "document"), &err);
	*reader = (struct bus_reader){.call = sd_bus_message_ref(call), .what = what, .next = b->readers};
	b->readers = reader;
	b->n_readers++;
	if (!b->document.here) /* else it is wanted when that has been handed out */
		drafts_want(&b->service->drafts, what);
	return 1;
}

int bus_want_document(struct bus *b, sd_bus_message *call, uint32_t what, sd_bus_error *ret_error)
{
	const int r = add_reader(b, call, what, ret_error);

	return r < 0 ? bus_refuse(b, call, r, ret_error) : r;
}

/* While one is handed out, those who wait for another are left waiting. */
void bus_begin_document(struct bus *b, uint32_t what)
{
	for (struct bus_reader *reader = b && !b->document.here ? b->readers : NULL; reader; reader = reader->next)
		reader->drafted = reader->what == what;
}

static char *read_text(int fd, uint64_t bytes, struct moe_error *err)
{
	char *text = malloc(bytes + 1);

	if (text && pread(fd, text, bytes, 0) == (ssize_t)bytes) {
		text[bytes] = '\0';
		return text;
	}
	free(text);
	moe_error_sys(err, -ENOMEM, "document of %llu bytes", (unsigned long long)bytes);
	return NULL;
}

static int answer(sd_bus_message *call, const char *text, int r, const struct moe_error *err)
{
	sd_bus_error error = SD_BUS_ERROR_NULL;

	if (text)
		return sd_bus_reply_method_return(call, "s", text);
	bus_error(&error, r, err);
	r = sd_bus_reply_method_error(call, &error);
	sd_bus_error_free(&error);
	return r;
}

static struct bus_reader **find_drafted(struct bus *b)
{
	struct bus_reader **at = &b->readers;

	while (*at && !(*at)->drafted)
		at = &(*at)->next;
	return at;
}

void bus_send_document(struct bus *b, int fd, uint64_t bytes, const struct moe_error *err)
{
	if (!b || b->document.here || !*find_drafted(b))
		return;
	b->document = (struct bus_document){.here = true, .r = fd < 0 ? fd : -ENOMEM};
	if (fd < 0)
		b->document.err = *err;
	else
		b->document.text = read_text(fd, bytes, &b->document.err);
}

static void forget_document(struct bus *b)
{
	free(b->document.text);
	b->document = (struct bus_document){0};
}

bool bus_hand_document(struct bus *b)
{
	const struct bus_document *document = &b->document;
	struct bus_reader **at;
	uint64_t queued;

	if (!document->here || sd_bus_get_n_queued_write(b->link, &queued) < 0 || queued > 0)
		return false;
	at = find_drafted(b);
	bus_gave(b, answer((*at)->call, document->text, document->r, &document->err));
	*at = reader_free(b, *at);
	if (*find_drafted(b))
		return true;
	forget_document(b);
	for (const struct bus_reader *reader = b->readers; reader; reader = reader->next)
		drafts_want(&b->service->drafts, reader->what);
	return true;
}

void bus_forget_readers(struct bus *b)
{
	forget_document(b);
	while (b->readers)
		b->readers = reader_free(b, b->readers);
}
