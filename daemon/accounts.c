/* SPDX-License-Identifier: MIT */
#include "daemon/accounts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/events.h"

/* Users who hold nothing are remembered (pool time, that a refusal was logged) until so many others have come. */
#define IDLE_MAX 64

struct accounts {
	uint64_t limits[ACCOUNT_RESOURCES], held[ACCOUNT_RESOURCES];
	uint32_t users[ACCOUNT_RESOURCES]; /* who hold some */
	struct account *head;              /* who came last goes first */
};

static const char *const names[ACCOUNT_RESOURCES] = {
	[ACCOUNT_BYTES] = "bytes",       [ACCOUNT_FDS] = "fds",           [ACCOUNT_CONNECTIONS] = "connections",
	[ACCOUNT_SESSIONS] = "sessions", [ACCOUNT_REQUESTS] = "requests", [ACCOUNT_LEASES] = "leases",
};

const char *account_resource_name(enum account_resource resource)
{
	return names[resource];
}

int account_resource_from_name(const char *name, size_t length)
{
	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
			return i;
	return -EINVAL;
}

/* -- the whole ---------------------------------------------------------------------------------------------------- */

void accounts_set_limits(struct accounts *a, const uint64_t limits[ACCOUNT_RESOURCES])
{
	for (int i = 0; i < ACCOUNT_RESOURCES; i++) {
		assert(limits[i] <= ACCOUNT_LIMIT_MAX);
		a->limits[i] = limits[i];
	}
}

int accounts_new(struct accounts **ret, const uint64_t limits[ACCOUNT_RESOURCES], struct moe_error *err)
{
	struct accounts *a = calloc(1, sizeof *a);

	if (!a)
		return moe_error_sys(err, -ENOMEM, "accounts");
	accounts_set_limits(a, limits);
	*ret = a;
	return 0;
}

static void account_free(struct account *u)
{
	assert(u->charges == 0);
	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		assert(u->held[i] == 0);
	for (int i = 0; i < POOL_PRIORITIES; i++)
		assert(u->sched.busy[i] == 0);
	free(u);
}

struct accounts *accounts_free(struct accounts *a)
{
	if (!a)
		return NULL;
	while (a->head) {
		struct account *next = a->head->next;

		account_free(a->head);
		a->head = next;
	}
	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		assert(a->held[i] == 0 && a->users[i] == 0);
	free(a);
	return NULL;
}

uint64_t accounts_limit(const struct accounts *a, enum account_resource resource)
{
	return a->limits[resource];
}

const struct account *accounts_first(const struct accounts *a)
{
	return a->head;
}

/* -- users -------------------------------------------------------------------------------------------------------- */

/* Of more idle users than are remembered, the one who came first is forgotten. */
static void forget_oldest(struct accounts *a)
{
	struct account **oldest = NULL;
	uint32_t idle = 0;

	for (struct account **at = &a->head; *at; at = &(*at)->next)
		if ((*at)->charges == 0) {
			oldest = at;
			idle++;
		}
	if (idle > IDLE_MAX) {
		struct account *gone = *oldest;

		*oldest = gone->next;
		account_free(gone);
	}
}

/* The user's account, made when there is none, at the head of the list. */
static struct account *come(struct accounts *a, uid_t uid)
{
	struct account **at = &a->head, *u;

	while (*at && (*at)->uid != uid)
		at = &(*at)->next;
	u = *at;
	if (u) {
		*at = u->next;
	} else {
		u = calloc(1, sizeof *u);
		if (!u)
			return NULL;
		u->uid = uid;
		u->accounts = a;
	}
	u->next = a->head;
	a->head = u;
	return u;
}

/* -- charges ------------------------------------------------------------------------------------------------------ */

int charge_open(struct charge *ret, struct accounts *a, uid_t uid, struct moe_error *err)
{
	struct account *u = come(a, uid);

	if (!u)
		return moe_error_sys(err, -ENOMEM, "account of uid %u", uid);
	u->charges++;
	*ret = (struct charge){.account = u};
	return 0;
}

void charge_close(struct charge *charge)
{
	struct account *u = charge->account;

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		charge_give(charge, (enum account_resource)i, charge->held[i]);
	if (u && --u->charges == 0)
		forget_oldest(u->accounts);
	*charge = (struct charge){0};
}

void charge_move(struct charge *from, struct charge *to, enum account_resource resource, uint64_t amount)
{
	assert(amount <= from->held[resource] && (!to->account || to->account == from->account));
	from->account->charges += !to->account;
	to->account = from->account;
	from->held[resource] -= amount;
	to->held[resource] += amount;
}

/* Users of the resource when this one has some. */
static uint32_t users_with(const struct account *u, enum account_resource resource)
{
	return u->accounts->users[resource] + (u->held[resource] == 0);
}

/* The most that the user may hold, as the others are now. */
static uint64_t most(const struct account *u, enum account_resource resource)
{
	const struct accounts *a = u->accounts;
	const uint64_t others = a->held[resource] - u->held[resource];
	const uint64_t whole = MAX(2 * a->limits[resource], others); /* limits may be lower than at what was granted */

	return (whole - others) / (users_with(u, resource) + 1);
}

static int refuse(struct account *u, enum account_resource resource, uint64_t amount, const char *what,
		  struct moe_error *err)
{
	struct moe_error text;
	const int r = moe_error_set(
		&text, -EDQUOT,
		"%s: uid %u has %llu of at most %llu %s now and asks for %llu more (for a user alone %llu, users now: "
		"%u): end sessions, or start the daemon with a higher --uid-limit %s=",
		what, u->uid, (unsigned long long)u->held[resource], (unsigned long long)most(u, resource),
		names[resource], (unsigned long long)amount, (unsigned long long)u->accounts->limits[resource],
		users_with(u, resource), names[resource]);

	if (u->refused[resource]++ == 0)
		event_log(EVENT_LIMIT, FACTS(.uid = u->uid, .reason = text.text), "%s", text.text);
	if (err)
		*err = text;
	return r;
}

int charge_take(struct charge *charge, enum account_resource resource, uint64_t amount, const char *what,
		struct moe_error *err)
{
	struct account *u = charge->account;
	uint64_t will;

	if (amount == 0)
		return 0;
	if (!checked_add(&will, u->held[resource], amount) || (!charge->granted && will > most(u, resource)))
		return refuse(u, resource, amount, what, err);
	u->accounts->users[resource] += u->held[resource] == 0;
	u->accounts->held[resource] += amount;
	u->held[resource] = will;
	charge->held[resource] += amount;
	return 0;
}

void charge_give(struct charge *charge, enum account_resource resource, uint64_t amount)
{
	struct account *u = charge->account;

	assert(amount <= charge->held[resource]);
	if (amount == 0)
		return;
	charge->held[resource] -= amount;
	u->held[resource] -= amount;
	u->accounts->held[resource] -= amount;
	u->accounts->users[resource] -= u->held[resource] == 0;
}
