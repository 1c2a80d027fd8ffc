/* SPDX-License-Identifier: MIT */
/*
 * Who calls, and whether he may: root and the daemon's own user may all, as on the socket; others what polkit lets
 * them (org.moeexpertd.policy). The bus and polkit are asked by messages whose answers come later: a user may be
 * typing a password meanwhile. Where polkit is not there nobody else may.
 *
 * So many calls wait, and none of them is large. The bus says at once who calls; it is a user's share of the places for
 * polkit that counts, and root needs none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/bus-internal.h"

#define ASKS_MAX 1024   /* that wait for an answer, and ... */
#define ASKS_CALLER 8   /* ... those of one connection */
#define POLKIT_MAX 64   /* that wait for polkit, and ... */
#define POLKIT_CALLER 8 /* ... those of one user */
#define CALL_BYTES 16384
#define VALUE_BYTES 16 /* of a call, for each value beside its text */
#define USEC_PASSWORD 120000000u
#define USEC_ANSWER 10000000u

struct ask {
	struct bus *bus;
	sd_bus_message *call;
	sd_bus_slot *slot; /* of the question that is under way */
	const char *action;
	bus_act_t act;
	uint32_t uid;
	bool known; /* by its uid: it waits for polkit */
	struct ask *next;
};

static void forget(struct ask *ask)
{
	struct ask **at = &ask->bus->asks;

	while (*at != ask)
		at = &(*at)->next;
	*at = ask->next;
	ask->bus->n_asks--;
	sd_bus_slot_unref(ask->slot);
	sd_bus_message_unref(ask->call);
	free(ask);
}

void bus_forget_asks(struct bus *b)
{
	while (b->asks)
		forget(b->asks);
}

static void act(struct ask *ask)
{
	sd_bus_error error = SD_BUS_ERROR_NULL;
	int r = ask->act(ask->bus, ask->call, &error);

	if (r < 0 || sd_bus_error_is_set(&error))
		bus_refuse(ask->bus, ask->call, r, &error);
	forget(ask);
}

static int refuse(struct ask *ask, const char *why)
{
	const int r = sd_bus_reply_method_errorf(
		ask->call, bus_error_name(-EPERM, false),
		"%s: for root, the daemon's user (uid %u) and whom polkit lets do %s; you are uid %u: %s",
		sd_bus_message_get_member(ask->call), geteuid(), ask->action, ask->uid, why);

	log_debug("bus: uid %u may not %s (%s): %s", ask->uid, sd_bus_message_get_member(ask->call), ask->action, why);
	bus_gave(ask->bus, r);
	forget(ask);
	return 1;
}

static int on_polkit(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	struct ask *ask = userdata;
	const sd_bus_error *error = sd_bus_message_get_error(m);
	int allowed = 0, challenge = 0;

	if (error && (sd_bus_error_has_name(error, SD_BUS_ERROR_SERVICE_UNKNOWN) ||
		      sd_bus_error_has_name(error, SD_BUS_ERROR_NAME_HAS_NO_OWNER)))
		return refuse(ask, "polkit is not there");
	if (error)
		return refuse(ask, error->message ? error->message : error->name);
	if (sd_bus_message_enter_container(m, 'r', "bba{ss}") < 0 ||
	    sd_bus_message_read(m, "bb", &allowed, &challenge) < 0)
		return refuse(ask, "polkit's answer is not one");
	if (!allowed)
		return refuse(ask, challenge ? "it wants a password, and the call does not allow that" : "it does not");
	act(ask);
	return 1;
}

static int ask_polkit(struct ask *ask)
{
	const bool interactive = sd_bus_message_get_allow_interactive_authorization(ask->call) > 0;
	sd_bus_message *m = NULL;
	int r = sd_bus_message_new_method_call(ask->bus->link, &m, "org.freedesktop.PolicyKit1",
					       "/org/freedesktop/PolicyKit1/Authority",
					       "org.freedesktop.PolicyKit1.Authority", "CheckAuthorization");

	if (r >= 0)
		r = sd_bus_message_append(m, "(sa{sv})sa{ss}us", "system-bus-name", 1, "name", "s",
					  sd_bus_message_get_sender(ask->call), ask->action, 0, (uint32_t)interactive,
					  "");
	ask->slot = sd_bus_slot_unref(ask->slot);
	if (r >= 0)
		r = sd_bus_call_async(ask->bus->link, &ask->slot, m, on_polkit, ask,
				      interactive ? USEC_PASSWORD : USEC_ANSWER);
	sd_bus_message_unref(m);
	return r;
}

static void count_known(const struct bus *b, uint32_t uid, uint32_t *ret_all, uint32_t *ret_own)
{
	*ret_all = *ret_own = 0;
	for (const struct ask *ask = b->asks; ask; ask = ask->next) {
		*ret_all += ask->known;
		*ret_own += ask->known && ask->uid == uid;
	}
}

static int beyond(struct ask *ask, uint32_t all, uint32_t own)
{
	sd_bus_error error = SD_BUS_ERROR_NULL;
	struct moe_error err;
	const int r = moe_error_set(&err, -EBUSY,
				    "%u calls wait for polkit, %u of them of uid %u; at most %d and %d: wait for their "
				    "answers",
				    all, own, ask->uid, POLKIT_MAX, POLKIT_CALLER);

	bus_refuse(ask->bus, ask->call, bus_error(&error, r, &err), &error);
	forget(ask);
	return 1;
}

static int on_uid(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	struct ask *ask = userdata;
	uint32_t all, own;
	int r;

	/* A caller that has left is not known any more, and hears nothing. */
	ask->uid = UINT32_MAX;
	if (sd_bus_message_is_method_error(m, NULL) || sd_bus_message_read(m, "u", &ask->uid) < 0)
		return refuse(ask, "the bus does not know the caller");
	if (ask->uid == 0 || ask->uid == geteuid()) {
		act(ask);
		return 1;
	}
	count_known(ask->bus, ask->uid, &all, &own);
	if (all >= POLKIT_MAX || own >= POLKIT_CALLER)
		return beyond(ask, all, own);
	ask->known = true;
	r = ask_polkit(ask);
	return r < 0 ? refuse(ask, strerror(-r)) : 1;
}

static bool is_text(char type)
{
	return strchr("sog", type) != NULL;
}

/* Counts up to the bound; below it, the rest of one container. */
static int count_bytes(sd_bus_message *m, size_t *bytes)
{
	const char *contents;
	char type;
	int r;

	while ((r = sd_bus_message_peek_type(m, &type, &contents)) > 0 && *bytes <= CALL_BYTES) {
		union {
			uint64_t number;
			const char *text;
		} value = {0};

		*bytes += VALUE_BYTES;
		if (contents) {
			r = sd_bus_message_enter_container(m, type, contents);
			if (r >= 0)
				r = count_bytes(m, bytes);
			if (r >= 0 && *bytes <= CALL_BYTES)
				r = sd_bus_message_exit_container(m);
		} else {
			r = sd_bus_message_read_basic(m, type, &value);
			if (r > 0 && is_text(type))
				*bytes += strlen(value.text);
		}
		if (r < 0 || *bytes > CALL_BYTES)
			return r;
	}
	return r;
}

/* It may be kept for as long as somebody types. */
static int check_size(sd_bus_message *call, struct moe_error *err)
{
	size_t bytes = 0;
	int r = count_bytes(call, &bytes);

	if (r >= 0 && bytes > CALL_BYTES)
		return moe_error_set(err, -EINVAL, "%.100s: a call of at most %d bytes expected",
				     sd_bus_message_get_member(call), CALL_BYTES);
	if (r >= 0)
		r = sd_bus_message_rewind(call, 1);
	return r < 0 ? moe_error_sys(err, r, "call") : 0;
}

static int check_room(const struct bus *b, const char *sender, struct moe_error *err)
{
	uint32_t own = 0;

	for (const struct ask *ask = b->asks; ask; ask = ask->next)
		own += strcmp(sd_bus_message_get_sender(ask->call), sender) == 0;
	if (b->n_asks < ASKS_MAX && own < ASKS_CALLER)
		return 0;
	return moe_error_set(err, -EBUSY,
			     "%u calls wait for leave, %u of them from here; at most %d and %d: wait for "
			     "their answers",
			     b->n_asks, own, ASKS_MAX, ASKS_CALLER);
}

static int ask_bus(struct bus *b, sd_bus_message *call, const char *action, bus_act_t act_then, sd_bus_error *ret_error)
{
	const char *sender = sd_bus_message_get_sender(call);
	struct moe_error err;
	struct ask *ask;
	int r;

	if (!sender)
		return -EPERM;
	r = check_room(b, sender, &err);
	if (r == 0)
		r = check_size(call, &err);
	if (r < 0)
		return bus_error(ret_error, r, &err);
	ask = calloc(1, sizeof *ask);
	if (!ask)
		return -ENOMEM;
	*ask = (struct ask){.bus = b, .action = action, .act = act_then, .next = b->asks};
	ask->call = sd_bus_message_ref(call);
	b->asks = ask;
	b->n_asks++;
	r = sd_bus_call_method_async(b->link, &ask->slot, "org.freedesktop.DBus", "/org/freedesktop/DBus",
				     "org.freedesktop.DBus", "GetConnectionUnixUser", on_uid, ask, "s", sender);
	if (r < 0)
		forget(ask);
	return r < 0 ? r : 1;
}

int bus_ask(struct bus *b, sd_bus_message *call, const char *action, bus_act_t act_then, sd_bus_error *ret_error)
{
	const int r = ask_bus(b, call, action, act_then, ret_error);

	return r < 0 ? bus_refuse(b, call, r, ret_error) : r;
}
