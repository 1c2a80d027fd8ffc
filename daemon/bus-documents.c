/* SPDX-License-Identifier: MIT */
/*
 * bus-documents - calls that wait for a document, which is made between the reactor's turns (drafts.h).
 *
 * Law: a call is answered once, with the document that was begun after it came, or with why there is none; or its link
 * is broken. So many wait at a time; a call beyond is refused.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "daemon/bus-internal.h"

#define READERS_MAX 256

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

static int add_reader(struct bus *b, sd_bus_message *call, uint32_t what, sd_bus_error *ret_error)
{
	struct moe_error err;
	struct bus_reader *reader;

	if (b->n_readers >= READERS_MAX)
		return bus_error(ret_error,
				 moe_error_set(&err, -EBUSY, "%u calls wait for documents already: try again later",
					       b->n_readers),
				 &err);
	reader = malloc(sizeof *reader);
	if (!reader)
		return bus_error(ret_error, moe_error_sys(&err, -ENOMEM, "document"), &err);
	*reader = (struct bus_reader){.call = sd_bus_message_ref(call), .what = what, .next = b->readers};
	b->readers = reader;
	b->n_readers++;
	drafts_want(&b->service->drafts, what);
	return 1;
}

int bus_want_document(struct bus *b, sd_bus_message *call, uint32_t what, sd_bus_error *ret_error)
{
	const int r = add_reader(b, call, what, ret_error);

	return r < 0 ? bus_refuse(b, call, r, ret_error) : r;
}

void bus_begin_document(struct bus *b, uint32_t what)
{
	for (struct bus_reader *reader = b ? b->readers : NULL; reader; reader = reader->next)
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

void bus_send_document(struct bus *b, int fd, uint64_t bytes, const struct moe_error *err)
{
	struct bus_reader **at = b ? &b->readers : NULL;
	struct moe_error none = {0};
	char *text = NULL;
	bool any = false;

	while (at && *at) {
		if (!(*at)->drafted) {
			at = &(*at)->next;
			continue;
		}
		if (!any && fd >= 0)
			text = read_text(fd, bytes, &none);
		any = true;
		bus_gave(b, answer((*at)->call, text, fd < 0 ? fd : -ENOMEM, fd < 0 ? err : &none));
		*at = reader_free(b, *at);
	}
	free(text);
	if (any)
		bus_watch(b);
}

void bus_forget_readers(struct bus *b)
{
	while (b->readers)
		b->readers = reader_free(b, b->readers);
}
