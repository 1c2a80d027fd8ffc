/* SPDX-License-Identifier: MIT */
/*
 * What a client says of its routing: any bytes in its tap, tails of any value. A record is refused, and its session
 * with it, or it is sound: of a layer and of experts that the model has, and of the length that it says. What was
 * accepted makes a recording that its reader takes whole.
 *
 * The input: where the tap is when it is opened (4 bytes), then steps, each a byte and what it takes. One session
 * serves all inputs: its tap, its heads and its tails are as new before each.
 */
#include "daemon/ringsrv.h"
#include "simulate/trace-routes.h"
#include "tests/fuzz/fuzz-daemon.h"

#define STEPS_MAX 64
#define RECORDED_MAX (64u << 10)
#define PUTS_MAX (STEPS_MAX * 64)
#define PUT_MAX sizeof(struct moe_route)

enum step {
	STEP_ROUTE,    /* layer, topk, tokens, phase and mode, then its ids: one that a client would write */
	STEP_BYTES,    /* n % 64 words at the tail, and the tail behind them */
	STEP_WRITE,    /* 3 bytes of place, a word */
	STEP_PUBLISH,  /* n: tap_tail += 8 n */
	STEP_SET_TAIL, /* 4 bytes */
	STEP_LOST,     /* 8 bytes */
	STEP_REOPEN,   /* nobody wants it, and somebody again */
	STEP_TAKE,     /* the daemon's turn */
	STEPS
};

static struct tap {
	struct session *session;
	struct moe_client_page *client;
	uint8_t *ring;
	struct moe_route *record;   /* what was taken, in memory of the tap's size */
	uint32_t written[PUTS_MAX]; /* where an input wrote, at most PUT_MAX bytes each */
	uint32_t n_written;
	uint8_t image[RECORDED_MAX]; /* of a file */
	size_t recorded;
	uint32_t routes;
} tap;

static void tap_stop(void)
{
	session_kill(tap.session, fuzz_daemon.service->sched);
	session_free(tap.session, NULL);
	loop_drain(fuzz_daemon.service->loop);
	free(tap.record);
}

static void tap_start(void)
{
	struct moe_msg_attach attach = {.layout = MOE_LAYOUT_VERSION, .tp_size = 1, .entries = 8};
	struct moe_error err = {0};

	fuzz_daemon_start();
	fuzz_daemon_load();
	if (tap.session)
		return;
	fuzz_check(session_new(&tap.session, fuzz_daemon.service->registry.head, &attach, fuzz_daemon.service->accounts,
			       getuid(), fuzz_daemon.service->loop, &err) == 0);
	tap.client = (struct moe_client_page *)(uintptr_t)tap.session->client.base;
	tap.ring = (uint8_t *)tap.client + tap.session->tap_offset;
	tap.record = malloc(SESSION_TAP_BYTES);
	fuzz_check(tap.record);
	atexit(tap_stop); /* before the daemon stops */
}

/* -- the client --------------------------------------------------------------------------------------------------- */

static void put(uint32_t at, const void *bytes, size_t n)
{
	fuzz_check(n <= PUT_MAX && tap.n_written < PUTS_MAX);
	tap.written[tap.n_written++] = at;
	for (size_t i = 0; i < n; i++)
		tap.ring[(at + i) & (SESSION_TAP_BYTES - 1)] = ((const uint8_t *)bytes)[i];
}

static void forget_all(void)
{
	for (uint32_t i = 0; i < tap.n_written; i++)
		for (uint32_t j = 0; j < PUT_MAX; j++)
			tap.ring[(tap.written[i] + j) & (SESSION_TAP_BYTES - 1)] = 0;
	tap.n_written = 0;
}

static void write_route(struct fuzz_bytes *from)
{
	struct moe_route route = {.kind = MOE_TRACE_ROUTE, .layer = (uint16_t)(fuzz_number(from, 1) % 3)};
	uint64_t bytes;
	uint8_t how;

	route.topk = (uint8_t)(fuzz_number(from, 1) % 5);
	route.tokens = (uint32_t)fuzz_number(from, 1) % 9;
	how = (uint8_t)fuzz_number(from, 1);
	route.phase = how & 3;
	route.mode = how >> 2 & 3;
	route.step = how >> 4;
	bytes = moe_route_bytes(route.tokens, route.topk);
	route.bytes = (uint32_t)bytes;
	put(tap.client->tap_tail, &route, sizeof route);
	for (uint32_t i = 0; i < route.tokens * route.topk; i++) {
		const uint8_t id = (uint8_t)fuzz_number(from, 1);
		const uint16_t wide = id == 0xff ? MOE_TRACE_NOBODY : id % 5;

		put(tap.client->tap_tail + (uint32_t)(sizeof route + 2 * i), &wide, sizeof wide);
	}
	tap.client->tap_tail += (uint32_t)bytes;
}

static void write_bytes(struct fuzz_bytes *from)
{
	uint64_t word;

	for (uint64_t n = fuzz_number(from, 1) % 64; n > 0; n--) {
		word = fuzz_number(from, 8);
		put(tap.client->tap_tail, &word, sizeof word);
		tap.client->tap_tail += 8;
	}
}

/* -- the daemon --------------------------------------------------------------------------------------------------- */

static void check_route(const struct moe_route *route)
{
	const struct resident *model = tap.session->entry->model;
	const uint16_t *ids = (const uint16_t *)(route + 1);

	fuzz_check(route->bytes == moe_route_bytes(route->tokens, route->topk) && route->bytes % 8 == 0);
	fuzz_check(route->layer < model->manifest->n_layers && model->layer_index[route->layer] >= 0);
	for (size_t i = 0; i < (size_t)route->tokens * route->topk; i++)
		fuzz_check(ids[i] < model->manifest->n_experts || ids[i] == MOE_TRACE_NOBODY);
	if (tap.recorded + route->bytes > sizeof tap.image)
		return;
	memcpy(tap.image + tap.recorded, route, route->bytes);
	tap.recorded += route->bytes;
	tap.routes++;
}

static void take(void)
{
	struct session *s = tap.session;

	while (s->tapped && ringsrv_tap_take(s, tap.record))
		check_route(tap.record);
	fuzz_check(s->page->tap_head == s->tap_head);
	ringsrv_tap_lost(s);
}

static void take_step(struct fuzz_bytes *from)
{
	const enum step step = (enum step)(fuzz_number(from, 1) % STEPS);
	uint64_t word;
	uint32_t at;

	switch (step) {
	case STEP_ROUTE:
		write_route(from);
		break;
	case STEP_BYTES:
		write_bytes(from);
		break;
	case STEP_WRITE:
		at = (uint32_t)fuzz_number(from, 3);
		word = fuzz_number(from, 8);
		put(at, &word, sizeof word);
		break;
	case STEP_PUBLISH:
		tap.client->tap_tail += 8 * (uint32_t)fuzz_number(from, 1);
		break;
	case STEP_SET_TAIL:
		tap.client->tap_tail = (uint32_t)fuzz_number(from, 4);
		break;
	case STEP_LOST:
		fuzz_take(from, &tap.client->tap_lost, sizeof tap.client->tap_lost);
		break;
	case STEP_REOPEN:
		ringsrv_tap_close(tap.session);
		fuzz_check(ringsrv_tap_open(tap.session, true) == 0);
		break;
	default:
		take();
	}
}

/* -- the recording ------------------------------------------------------------------------------------------------ */

static void begin_recording(void)
{
	const struct moe_manifest *m = tap.session->entry->model->manifest;
	const struct moe_trace_head head = {
		.magic = MOE_TRACE_MAGIC, .version = MOE_TRACE_VERSION, .bytes = sizeof head};
	const struct moe_trace_source source = {.bytes = sizeof source,
						.kind = MOE_TRACE_SOURCE,
						.session = 1,
						.n_layers = m->n_layers,
						.n_experts = m->n_experts,
						.topk = 2,
						.model = "small"};

	memcpy(tap.image, &head, sizeof head);
	memcpy(tap.image + sizeof head, &source, sizeof source);
	tap.recorded = sizeof head + sizeof source;
	tap.routes = 0;
}

static void check_recording(void)
{
	const struct trace_source file = {"tap", tap.image, tap.recorded, false};
	struct moe_error err = {0};
	struct routes_record record;
	struct routes routes;
	uint32_t n = 0;
	int r;

	fuzz_check(routes_open(&routes, &file, &err) == 0);
	while ((r = routes_next(&routes, &record, &err)) > 0)
		n += record.kind == MOE_TRACE_ROUTE;
	fuzz_check(r == 0 && n == tap.routes);
	routes_close(&routes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {data, size};
	const uint32_t start = (uint32_t)fuzz_number(&from, 4);
	struct session *s;

	tap_start();
	s = tap.session;
	s->broken = NULL;
	tap.client->tap_lost = 0;
	tap.client->tap_tail = start;
	fuzz_check(ringsrv_tap_open(s, true) == 0);
	begin_recording();
	for (int i = 0; i < STEPS_MAX && from.left > 0 && !s->broken; i++)
		take_step(&from);
	take();
	check_recording();
	ringsrv_tap_close(s);
	forget_all();
	return 0;
}
