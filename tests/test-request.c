/* SPDX-License-Identifier: MIT */
/* The ten-state request table: exactly the arrows that moe_ring.h writes down, and nothing beyond its ends. */
#include "daemon/request.h"
#include "tests/tap.h"

static const struct {
	enum moe_request_state from, to;
} arrows[] = {
	{MOE_REQUEST_FREE, MOE_REQUEST_POSTED},       {MOE_REQUEST_POSTED, MOE_REQUEST_PUBLISHED},
	{MOE_REQUEST_PUBLISHED, MOE_REQUEST_CLAIMED}, {MOE_REQUEST_CLAIMED, MOE_REQUEST_QUEUED},
	{MOE_REQUEST_CLAIMED, MOE_REQUEST_DONE},      {MOE_REQUEST_QUEUED, MOE_REQUEST_RUNNING},
	{MOE_REQUEST_QUEUED, MOE_REQUEST_DONE},       {MOE_REQUEST_RUNNING, MOE_REQUEST_DONE},
	{MOE_REQUEST_DONE, MOE_REQUEST_COMPLETED},    {MOE_REQUEST_DONE, MOE_REQUEST_REAPED},
	{MOE_REQUEST_COMPLETED, MOE_REQUEST_RETIRED}, {MOE_REQUEST_COMPLETED, MOE_REQUEST_REAPED},
	{MOE_REQUEST_RETIRED, MOE_REQUEST_REAPED},    {MOE_REQUEST_REAPED, MOE_REQUEST_FREE},
};

static bool is_arrow(unsigned int from, unsigned int to)
{
	for (size_t i = 0; i < sizeof arrows / sizeof *arrows; i++)
		if (arrows[i].from == from && arrows[i].to == to)
			return true;
	return false;
}

static void test_table(void)
{
	int wrong = 0;

	for (unsigned int from = 0; from < MOE_REQUEST_STATES + 2; from++)
		for (unsigned int to = 0; to < MOE_REQUEST_STATES + 2; to++)
			wrong += moe_request_arrow(from, to) != is_arrow(from, to);
	ok(wrong == 0, "the table has the %zu arrows and no other", sizeof arrows / sizeof *arrows);
}

static void test_list(void)
{
	struct request requests[3] = {0};
	struct request_list list;

	request_list_init(&list);
	ok(request_list_pop(&list) == NULL, "an empty list gives nothing");
	for (int round = 0; round < 2; round++) {
		bool in_order = true;

		for (int i = 0; i < 3; i++)
			request_list_push(&list, &requests[i]);
		for (int i = 0; i < 3; i++)
			in_order &= request_list_pop(&list) == &requests[i];
		ok(in_order && request_list_pop(&list) == NULL, "first in, first out, round %d", round);
	}
}

int main(void)
{
	test_table();
	test_list();
	return tap_done();
}
