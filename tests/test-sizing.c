/* SPDX-License-Identifier: MIT */
/*
 * sizing - the numbers of docs/SIZING.md are those of the code: each line of its tables is computed here from the
 * layout of records, slices, frames and arenas. `test-sizing --print` prints the tables.
 */
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "daemon/frames.h"
#include "model/expert.h"
#include "model/pool-size.h"
#include "tests/tap.h"
#include "uapi/moe_ring.h"

#define GIB ((double)(1 << 30))
#define MIB ((double)(1 << 20))
#define SIZES 4 /* of groups: 1, 2, 4, 8 ranks */
#define DEFAULT_TOKENS 512
#define DEFAULT_STEPS 2
#define DEFAULT_UPDATES 2
#define MISS_SLOTS 8 /* of the third table */

static const struct shape {
	const char *name;
	uint32_t moe_layers, experts, topk, hidden, inter;
	bool bias;
	const char *formats[5];
} shapes[] = {
	{"DeepSeek-V3", 58, 256, 8, 7168, 2048, false, {"fp8-block", "int4-g128-f16", "q4_k"}},
	{"Kimi-K2", 60, 384, 8, 7168, 2048, false, {"fp8-block", "int4-g32-bf16"}},
	{"Qwen3-30B-A3B", 48, 128, 8, 2048, 768, false, {"bf16", "fp8-block", "int4-g128-f16", "q4_k"}},
	{"Mixtral-8x7B", 32, 8, 2, 4096, 14336, false, {"bf16", "int8", "int4-g128-f16-zp", "q4_k"}},
	{"gpt-oss-20b", 24, 32, 4, 2880, 2880, true, {"mxfp4"}},
	{"gpt-oss-120b", 36, 128, 4, 2880, 2880, true, {"mxfp4"}},
};

static char document[1 << 16];
static bool print;

static uint64_t pages(uint64_t bytes, uint64_t page)
{
	return DIV_UP(bytes, page);
}

static struct moe_layout layout_of(const struct shape *s, const char *name)
{
	struct moe_layout layout = {0};
	uint32_t f = 1;

	while (f < MOE_FORMAT_COUNT && strcmp(moe_formats[f].name, name) != 0)
		f++;
	require(f < MOE_FORMAT_COUNT &&
			layout_place(&layout, (const uint32_t[]){f, f, f}, (const bool[]){s->bias, s->bias, s->bias},
				     s->hidden, s->inter) == 0,
		"%s can be %s", s->name, name);
	return layout;
}

/* Of one pool file when there are so many nodes. */
static uint64_t pool_bytes(const struct shape *s, const struct moe_layout *layout, uint32_t nodes)
{
	struct moe_layout spread;

	layout_spread(&spread, layout, nodes);
	return spread.record_bytes * s->moe_layers * s->experts;
}

/* The line stands in the document as it is. */
static void line_is(const char *line, const struct shape *s, const char *format)
{
	if (print)
		puts(line);
	else if (!ok(strstr(document, line) != NULL, "%s, %s", s->name, format))
		printf("#   expected %s\n", line);
}

/* Record, all of them, what is read for a token, pages, and the least with --pool-max. */
static void memory(const struct shape *s, const char *format)
{
	const struct moe_layout layout = layout_of(s, format);
	const uint64_t record = layout.record_bytes, one = pool_bytes(s, &layout, 1), two = pool_bytes(s, &layout, 2);
	char line[300];

	snprintf(line, sizeof line,
		 "| %s | %s | %.2f MiB | %.1f GiB | %.2f GiB | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " | %.2f GiB |",
		 s->name, format, (double)record / MIB, (double)one / GIB,
		 (double)(record * s->moe_layers * s->topk) / GIB, pages(one, 2 << 20), pages(one, 1 << 30),
		 pages(two, 1 << 30), (double)(record * pool_frames_min(s->experts, s->topk)) / GIB);
	line_is(line, s, format);
}

/* The largest slice of a group of so many ranks; 0: the format cannot be cut like that. */
static uint64_t slot_bytes(const struct moe_layout *layout, uint32_t ranks)
{
	uint64_t most = 0;

	if (ranks > moe_slice_units(layout))
		return 0;
	for (uint32_t rank = 0; rank < ranks; rank++) {
		struct moe_slice slice;

		moe_slice_of(&slice, layout, rank, ranks);
		most = MAX(most, slice.bytes);
	}
	return most;
}

/* The experts of each layer that 16 GiB of slots hold, beside the miss buffers and the spare slots. */
static int print_cached(char *to, size_t size, const struct shape *s, uint64_t slot)
{
	const uint32_t besides = 2 * MISS_SLOTS + 2 * DEFAULT_UPDATES;
	const uint64_t all = slot ? ((uint64_t)16 << 30) / slot : 0;
	const uint64_t each = all > besides ? (all - besides) / s->moe_layers : 0;

	return slot ? snprintf(to, size, " %" PRIu64 " of %u |", MIN(each, (uint64_t)s->experts), s->experts)
		    : snprintf(to, size, " - |");
}

/* Slots of groups, and how many experts of each layer a GPU caches in 16 GiB when it is alone. */
static void slots(const struct shape *s, const char *format)
{
	const struct moe_layout layout = layout_of(s, format);
	char line[300];
	int n = snprintf(line, sizeof line, "| %s | %s |", s->name, format);

	for (uint32_t i = 0; i < SIZES; i++) {
		const uint64_t bytes = slot_bytes(&layout, 1u << i);

		n += bytes ? snprintf(line + n, sizeof line - (size_t)n, " %.2f MiB |", (double)bytes / MIB)
			   : snprintf(line + n, sizeof line - (size_t)n, " - |");
	}
	for (uint32_t i = 0; i < SIZES; i += SIZES - 1)
		n += print_cached(line + n, sizeof line - (size_t)n, s, slot_bytes(&layout, 1u << i));
	line_is(line, s, format);
}

/* What a session with the library's defaults has in its data arena (lib/step.c). */
static void arena(const struct shape *s)
{
	const uint64_t rows = (uint64_t)DEFAULT_TOKENS * s->hidden * sizeof(float);
	const uint64_t pairs = (uint64_t)DEFAULT_TOKENS * MOE_TOPK_MAX * sizeof(float);
	char line[120];

	snprintf(line, sizeof line, "| %s | %.1f MiB |", s->name,
		 (double)(DEFAULT_STEPS * (3 * rows + 2 * pairs)) / MIB);
	line_is(line, s, "data arena");
}

static void each_format(void (*one)(const struct shape *, const char *))
{
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (size_t f = 0; f < ARRAY_LEN(shapes[i].formats) && shapes[i].formats[f]; f++)
			one(&shapes[i], shapes[i].formats[f]);
}

int main(int argc, char **argv)
{
	const char *root = getenv("MOE_SOURCE");
	char path[4096];
	_cleanup_fclose_ FILE *in = NULL;

	print = argc > 1 && strcmp(argv[1], "--print") == 0;
	snprintf(path, sizeof path, "%s/docs/SIZING.md", root ? root : ".");
	in = fopen(path, "r");
	require(print || (in && fread(document, 1, sizeof document - 1, in) > 1000), "%s is read", path);
	each_format(memory);
	each_format(slots);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		arena(&shapes[i]);
	return tap_done();
}
