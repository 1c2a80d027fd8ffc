/* SPDX-License-Identifier: MIT */
/*
 * accounts - what each user (UID) holds of what the daemon can give, and whether it may have more.
 *
 * Law: each resource has a limit, what one user may hold who is alone. All users together never hold more than twice
 * the limit, and who asks for more may then hold at most
 *
 *     (2 x limit - what the others hold) / (users + 1)
 *
 * where users are those who hold some of the resource, and who asks: the limit itself for one user, a third of it for
 * a second one beside a first that took all it could, and so on (dbus-broker's rule: a share of between 1/n and 1/n^2
 * of the whole, n being users + 1). So whoever comes finds something left, and nobody has to give back.
 *
 * What a client makes the daemon hold is charged before it is made, and given back in the same amount by whoever
 * unmakes it: a charge belongs to one thing, a connection or a session. What a running session needs is charged when
 * it attaches or registers memory, so that another user's coming never fails its requests. Nobody is exempt, neither
 * root nor the daemon's own user. Freeing asserts that the books balance. The reactor's alone.
 */
#ifndef DAEMON_ACCOUNTS_H
#define DAEMON_ACCOUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/pollset.h"
#include "daemon/scheduler.h"
#include "moe-error.h"

enum account_resource {
	ACCOUNT_BYTES, /* arenas, regions, books, copies of ids and weights */
	ACCOUNT_FDS,
	ACCOUNT_CONNECTIONS,
	ACCOUNT_SESSIONS,
	ACCOUNT_REQUESTS, /* queue entries: as many may be in flight */
	ACCOUNT_LEASES,   /* places in tables of leases, which do not shrink */
	ACCOUNT_RESOURCES
};

/* More than any machine has, and twice of it is a number. */
#define ACCOUNT_LIMIT_MAX (UINT64_MAX / 4)

struct accounts;

struct account {
	uid_t uid;
	uint64_t held[ACCOUNT_RESOURCES];
	uint64_t refused[ACCOUNT_RESOURCES]; /* how often; the first time is logged */
	uint64_t pool_ns;                    /* that the pool worked on its requests */
	struct sched_user sched;
	struct pollset_user poll;
	uint32_t charges; /* open ones */
	struct accounts *accounts;
	struct account *next;
};

/* What one thing holds, on its user's account. All zero: not open. */
struct charge {
	struct account *account;
	bool granted; /* a daemon before this one did: what it takes is not asked for again */
	uint64_t held[ACCOUNT_RESOURCES];
};

int accounts_new(struct accounts **ret, const uint64_t limits[ACCOUNT_RESOURCES], struct moe_error *err);
struct accounts *accounts_free(struct accounts *accounts); /* no charge may be open; takes NULL, returns NULL */

/* What is held stays held: who is above a new limit gets no more until below it. */
void accounts_set_limits(struct accounts *accounts, const uint64_t limits[ACCOUNT_RESOURCES]);
uint64_t accounts_limit(const struct accounts *accounts, enum account_resource resource);
/* Those who hold something, and those who came last: the first of a list. */
const struct account *accounts_first(const struct accounts *accounts);

/* An empty charge on the user's account. -ENOMEM. */
int charge_open(struct charge *ret, struct accounts *accounts, uid_t uid, struct moe_error *err);
/* Gives back all that it holds. Takes one that is not open, and leaves such a one. */
void charge_close(struct charge *charge);

/* All of `amount` or nothing: -EDQUOT, and *err says what was asked for (`what`), the limit and what raises it. */
int charge_take(struct charge *charge, enum account_resource resource, uint64_t amount, const char *what,
		struct moe_error *err);
void charge_give(struct charge *charge, enum account_resource resource, uint64_t amount);

/* `amount` of what `from` holds is held by `to`, which is opened on the same account if it is not open. */
void charge_move(struct charge *from, struct charge *to, enum account_resource resource, uint64_t amount);

const char *account_resource_name(enum account_resource resource); /* "bytes" */
int account_resource_from_name(const char *name, size_t length);   /* -EINVAL */

#endif
