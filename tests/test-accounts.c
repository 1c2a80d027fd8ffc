/* SPDX-License-Identifier: MIT */
/*
 * The accounts' rule in exact numbers, for every resource: what a user gets alone and beside others, to the unit; that
 * what is given back can be had again; numbers that would overflow; one line in the log for the first refusal of a user
 * and a resource. Then random users, charges and ends against the rule in another form and in wider arithmetic.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "daemon/accounts.h"
#include "tests/tap.h"

static struct accounts *accounts_of(uint64_t limit)
{
	uint64_t limits[ACCOUNT_RESOURCES];
	struct accounts *a;

	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		limits[i] = limit;
	require(accounts_new(&a, limits, NULL) == 0, "accounts with a limit of %llu", (unsigned long long)limit);
	return a;
}

static struct charge charge_of(struct accounts *a, uid_t uid)
{
	struct charge c = {0};

	require(charge_open(&c, a, uid, NULL) == 0, "a charge of uid %u", uid);
	return c;
}

/* So much can be taken, and not one more. */
static bool room_is(struct charge *c, enum account_resource resource, uint64_t amount)
{
	return charge_take(c, resource, amount + 1, "test", NULL) == -EDQUOT &&
	       charge_take(c, resource, amount, "test", NULL) == 0 &&
	       charge_take(c, resource, 1, "test", NULL) == -EDQUOT;
}

static void test_exact(enum account_resource resource)
{
	const char *name = account_resource_name(resource);
	struct accounts *a = accounts_of(512);
	struct charge first = charge_of(a, 0), second = charge_of(a, 1), third = charge_of(a, 2);
	struct charge again = charge_of(a, 0);

	ok(room_is(&first, resource, 512), "%s: a user alone gets 512 of 1024, not 513", name);
	ok(charge_take(&again, resource, 1, "test", NULL) == -EDQUOT, "%s: nor more by another connection", name);
	ok(room_is(&second, resource, 170), "%s: a second user gets 170, not 171", name);
	ok(room_is(&third, resource, 85), "%s: a third one 85, not 86", name);
	charge_give(&first, resource, 512);
	ok(room_is(&second, resource, 143), "%s: when the first has left, the second one may have 313", name);
	charge_give(&third, resource, 85);
	ok(room_is(&second, resource, 199), "%s: and alone 512", name);
	ok(room_is(&again, resource, 170), "%s: who comes back is a second user now", name);
	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		if (i != (int)resource)
			ok(room_is(&third, (enum account_resource)i, 512), "%s does not count as %s", name,
			   account_resource_name((enum account_resource)i));
	charge_close(&second);
	charge_close(&third);
	charge_close(&again);
	ok(room_is(&first, resource, 512), "%s: all of it is there again at the end", name);
	charge_close(&first);
	accounts_free(a);
}

/* A second user with little keeps the first one's share above a third of the whole. */
static void test_small_neighbour(void)
{
	struct accounts *a = accounts_of(512);
	struct charge big = charge_of(a, 0), small = charge_of(a, 1);

	ok(charge_take(&small, ACCOUNT_BYTES, 4, "test", NULL) == 0 && room_is(&big, ACCOUNT_BYTES, 340),
	   "beside one who has 4, a user gets (1024 - 4) / 3");
	ok(charge_take(&big, ACCOUNT_BYTES, 0, "test", NULL) == 0, "nothing can always be had");
	charge_close(&small);
	charge_close(&big);
	accounts_free(a);
}

/* A successor with lower limits takes over what its predecessor granted, and nobody gets more. */
static void test_granted(void)
{
	struct accounts *a = accounts_of(10);
	struct charge first = charge_of(a, 0), second = charge_of(a, 1);

	first.granted = true;
	ok(charge_take(&first, ACCOUNT_BYTES, 100, "test", NULL) == 0, "what was granted is had");
	ok(room_is(&second, ACCOUNT_BYTES, 0), "there is nothing left for others");
	first.granted = false;
	charge_give(&first, ACCOUNT_BYTES, 95);
	ok(room_is(&second, ACCOUNT_BYTES, 5) && room_is(&first, ACCOUNT_BYTES, 0), "then the rule is as always");
	first.granted = true;
	ok(charge_take(&first, ACCOUNT_BYTES, UINT64_MAX, "test", NULL) == -EDQUOT, "but never more than a number");
	charge_close(&first);
	charge_close(&second);
	accounts_free(a);
}

static void test_one_for_each(void)
{
	struct accounts *a = accounts_of(1);
	struct charge first = charge_of(a, 0), second = charge_of(a, 1);

	ok(room_is(&first, ACCOUNT_SESSIONS, 1), "with a limit of 1 the first user gets 1");
	ok(room_is(&second, ACCOUNT_SESSIONS, 0), "and nobody else any: (2 - 1) / 3");
	charge_close(&first);
	charge_close(&second);
	accounts_free(a);
}

static void test_overflow(void)
{
	struct accounts *a = accounts_of(ACCOUNT_LIMIT_MAX);
	struct charge first = charge_of(a, 0), second = charge_of(a, 1);

	ok(charge_take(&first, ACCOUNT_BYTES, UINT64_MAX, "test", NULL) == -EDQUOT, "2^64 - 1 is refused");
	ok(room_is(&first, ACCOUNT_BYTES, ACCOUNT_LIMIT_MAX), "the largest limit can be had");
	ok(charge_take(&first, ACCOUNT_BYTES, UINT64_MAX - ACCOUNT_LIMIT_MAX + 1, "test", NULL) == -EDQUOT,
	   "what makes 2^64 with it is refused");
	ok(room_is(&second, ACCOUNT_BYTES, ACCOUNT_LIMIT_MAX / 3), "a second user gets a third");
	charge_close(&first);
	charge_close(&second);
	accounts_free(a);
}

/* -- words -------------------------------------------------------------------------------------------------------- */

static void test_words(void)
{
	struct accounts *a = accounts_of(10);
	struct charge c = charge_of(a, 1000);
	struct moe_error err;
	bool good = true;

	for (int i = 0; i < ACCOUNT_RESOURCES; i++) {
		const char *name = account_resource_name((enum account_resource)i);

		good &= account_resource_from_name(name, strlen(name)) == i;
	}
	ok(good && account_resource_from_name("byte", 4) == -EINVAL &&
		   account_resource_from_name("bytes=", 6) == -EINVAL,
	   "resources have names");
	charge_take(&c, ACCOUNT_FDS, 7, "test", NULL);
	ok(charge_take(&c, ACCOUNT_FDS, 4, "attach", &err) == -EDQUOT && err.code == -EDQUOT &&
		   strstr(err.text, "attach: uid 1000 has 7 of at most 10 fds now and asks for 4 more") &&
		   strstr(err.text, "--uid-limit fds="),
	   "a refusal names what, user, resource, limit and option: %s", err.text);
	charge_close(&c);
	accounts_free(a);
}

/* Lines that are logged while so many refusals happen. */
static int lines_logged(struct charge *charges, int n, enum account_resource resource, int times)
{
	char path[TAP_TMP], text[8192];
	const int file = mkstemp(tap_tmp(path, "moe-test-accounts-XXXXXX")), before = dup(STDERR_FILENO);
	int lines = 0;
	ssize_t size;

	require(file >= 0 && before >= 0 && dup2(file, STDERR_FILENO) >= 0, "a file for the log");
	unlink(path);
	for (int i = 0; i < times; i++)
		for (int k = 0; k < n; k++)
			charge_take(&charges[k], resource, 1000, "test", NULL);
	dup2(before, STDERR_FILENO);
	close(before);
	size = pread(file, text, sizeof text, 0);
	for (ssize_t i = 0; i < size; i++)
		lines += text[i] == '\n';
	close(file);
	return lines;
}

static void test_logged_once(void)
{
	struct accounts *a = accounts_of(10);
	struct charge charges[3] = {charge_of(a, 1), charge_of(a, 2), charge_of(a, 1)};

	log_open("test-accounts", LOG_LEVEL_WARNING);
	ok(lines_logged(charges, 3, ACCOUNT_BYTES, 5) == 2, "15 refusals of two users are two lines");
	ok(lines_logged(charges, 3, ACCOUNT_LEASES, 5) == 2, "another resource is told again");
	ok(accounts_first(a)->uid == 1 && accounts_first(a)->refused[ACCOUNT_BYTES] == 10 &&
		   accounts_first(a)->next->refused[ACCOUNT_LEASES] == 5,
	   "all are counted");
	for (int i = 0; i < 3; i++)
		charge_close(&charges[i]);
	charges[0] = charge_of(a, 1);
	ok(lines_logged(charges, 1, ACCOUNT_BYTES, 5) == 0, "who leaves and comes back is not told again");
	charge_close(&charges[0]);
	log_open("test-accounts", LOG_LEVEL_ERR);
	accounts_free(a);
}

/* Users who come once and never again do not fill memory. */
static void test_forgotten(void)
{
	struct accounts *a = accounts_of(10);
	struct charge stays = charge_of(a, 5);
	bool kept = false;
	int n = 0;

	for (uid_t uid = 1000; uid < 1500; uid++) {
		struct charge c = {0};

		if (charge_open(&c, a, uid, NULL) == 0)
			charge_close(&c);
	}
	for (const struct account *u = accounts_first(a); u; u = u->next) {
		kept |= u->uid == 5;
		n++;
	}
	ok(kept && n < 100, "of 501 users the one who is there and the latest are remembered (%d)", n);
	charge_close(&stays);
	accounts_free(a);
}

/* -- at random, against a model ----------------------------------------------------------------------------------- */

enum { USERS = 6, CHARGES = 24, STEPS = 200000 };

struct model_charge {
	struct charge charge;
	int user; /* -1: not open */
	uint64_t held[ACCOUNT_RESOURCES];
};

static unsigned long long seed;

static uint64_t pick(uint64_t n)
{
	const uint64_t x = tap_random(&seed);

	return (x ^ x >> 32) % n;
}

static uint64_t model_sum(const struct model_charge *all, int user, int resource)
{
	uint64_t sum = 0;

	for (int i = 0; i < CHARGES; i++)
		if (all[i].user >= 0 && (user < 0 || all[i].user == user))
			sum += all[i].held[resource];
	return sum;
}

/* dbus-broker's form: A(users) x (share + charge) - share <= remaining, A(users) = users + 1. */
static bool model_allows(const struct model_charge *all, int user, int resource, uint64_t amount, uint64_t limit)
{
	const __int128 share = model_sum(all, user, resource), remaining = 2 * limit - model_sum(all, -1, resource);
	int users = 1;

	for (int i = 0; i < USERS; i++)
		users += i != user && model_sum(all, i, resource) > 0;
	return amount == 0 || (users + 1) * (share + amount) - share <= remaining;
}

static void model_close(struct model_charge *c)
{
	charge_close(&c->charge);
	*c = (struct model_charge){.user = -1};
}

static void test_random(uint64_t limit)
{
	struct accounts *a = accounts_of(limit);
	struct model_charge all[CHARGES];
	uint64_t refused = 0, taken = 0, wrong = 0;

	for (int i = 0; i < CHARGES; i++)
		all[i] = (struct model_charge){.user = -1};
	for (int step = 0; step < STEPS && wrong == 0; step++) {
		struct model_charge *c = &all[pick(CHARGES)];
		const int resource = (int)pick(ACCOUNT_RESOURCES);

		if (c->user < 0) {
			c->user = (int)pick(USERS);
			wrong += charge_open(&c->charge, a, (uid_t)c->user, NULL) != 0;
		} else if (pick(12) == 0) {
			model_close(c);
		} else if (pick(3) == 0 && c->held[resource] > 0) {
			const uint64_t amount = pick(c->held[resource] + 1);

			charge_give(&c->charge, (enum account_resource)resource, amount);
			c->held[resource] -= amount;
		} else {
			const uint64_t amount = pick(limit / (1 + pick(16)) + 2);
			const bool may = model_allows(all, c->user, resource, amount, limit);
			const int r = charge_take(&c->charge, (enum account_resource)resource, amount, "test", NULL);

			wrong += r != (may ? 0 : -EDQUOT);
			c->held[resource] += may ? amount : 0;
			*(may ? &taken : &refused) += 1;
		}
		wrong += memcmp(c->held, c->charge.held, sizeof c->held) != 0;
		wrong += c->user >= 0 && c->charge.account->held[resource] != model_sum(all, c->user, resource);
	}
	ok(wrong == 0 && taken > STEPS / 20 && refused > STEPS / 20,
	   "limit %llu: %llu times taken, %llu refused, as the model says", (unsigned long long)limit,
	   (unsigned long long)taken, (unsigned long long)refused);
	for (int i = 0; i < CHARGES; i++)
		model_close(&all[i]);
	for (const struct account *u = accounts_first(a); u; u = u->next)
		for (int i = 0; i < ACCOUNT_RESOURCES; i++)
			wrong += u->held[i] != 0;
	ok(wrong == 0, "nobody holds anything at the end");
	accounts_free(a);
}

int main(void)
{
	seed = tap_seed();
	log_open("test-accounts", LOG_LEVEL_ERR);
	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		test_exact((enum account_resource)i);
	test_small_neighbour();
	test_granted();
	test_one_for_each();
	test_overflow();
	test_words();
	test_logged_once();
	test_forgotten();
	test_random(512);
	test_random(7);
	test_random(ACCOUNT_LIMIT_MAX);
	return tap_done();
}
