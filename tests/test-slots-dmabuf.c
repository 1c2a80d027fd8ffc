/* SPDX-License-Identifier: MIT */
/* Slots as a dma-buf: what others see in it is what fills have brought, where the numbers say. */
#include <errno.h>

#include "tests/cuda-sim/cuda-sim.h"
#include "tests/engine-jobs.h"

static void test_refused(const char *name, struct moe_attach_params p, int code, const char *words)
{
	struct moe_slots_dmabuf shared = {.fd = -7};
	struct fake *f = open_fake(&p);
	struct moe_error err = {0};
	const int r = moe_slots_dmabuf(&f->session, &shared, &err);

	ok(r == code && shared.fd == -7 && strstr(err.text, words), "%s: %d, %s", name, r, err.text);
	fake_free(f);
}

/* Fills a slot of two layers of different formats and compares their bytes. */
static void test_content(void)
{
	const struct moe_attach_params p = default_params();
	struct fake *f = open_fake(&p);
	struct moe_slots_dmabuf a, b;
	struct cuda_sim sim;
	const uint8_t *map;
	uint32_t layer;
	int r = moe_slots_dmabuf(&f->session, &a, NULL), wrong = 0;

	if (r == 0)
		r = moe_slots_dmabuf(&f->session, &b, NULL);
	ok(r == 0 && a.fd >= 0 && b.fd >= 0 && a.fd != b.fd, "two dma-bufs, each with a descriptor of its own");
	if (r < 0) {
		fake_free(f);
		return;
	}
	close(b.fd);
	ok(a.slot_bytes == f->session.info.slot_bytes && a.slots == 4 * (LAYERS - 1) + 2 * (EXPERTS - 4) + 2 * 2 &&
		   a.offset + a.slots * a.slot_bytes <= a.bytes,
	   "%u slots of %llu bytes in %llu", a.slots, (unsigned long long)a.slot_bytes, (unsigned long long)a.bytes);
	map = mmap(NULL, a.bytes, PROT_READ, MAP_SHARED, a.fd, 0);
	for (layer = 1; map != MAP_FAILED && layer < LAYERS; layer++) {
		const uint32_t slot = layer % 4, expert = 11 - layer;
		uint32_t before = 0, at = 0;
		const struct moe_slice *slice = fake_slice(f, layer);
		uint8_t *packed = calloc(1, slice->bytes);
		struct moe_slice whole;
		int i, plane;

		if (!packed)
			abort();
		moe_slice_of(&whole, &f->whole[session_row_layout(&f->session, layer - 1)], 0, 1);
		plain_pack(&whole, fake_record(f, layer, expert), packed);
		wrong += moe_slot_number(&f->session, layer, slot, &before, NULL) != 0;
		wrong += moe_fill(&f->session, layer, expert, slot, NULL) != 0;
		wrong += moe_slot_number(&f->session, layer, slot, &at, NULL) != 0 || at == before || at >= a.slots;
		for (i = 0; i < MOE_PARTS; i++)
			for (plane = 0; plane < MOE_PLANES; plane++) {
				const struct moe_slice_plane *q = &slice->plane[i][plane];

				wrong += memcmp(map + a.offset + at * a.slot_bytes + q->slot_offset,
						packed + q->slot_offset, q->rows * q->width) != 0;
			}
		free(packed);
	}
	if (map == MAP_FAILED && !cuda_sim_find(&sim))
		tap_skip("CPUs cannot map this GPU's dma-bufs, only import them");
	else
		ok(map != MAP_FAILED && wrong == 0,
		   "what was filled lies where the numbers say, elsewhere than before");
	ok(moe_slot_number(&f->session, 0, 0, &layer, NULL) == -EINVAL &&
		   moe_slot_number(&f->session, 1, 4, &layer, NULL) == -EINVAL,
	   "a dense layer, and one slot too many");
	if (map != MAP_FAILED)
		munmap((void *)map, a.bytes);
	close(a.fd);
	fake_free(f);
}

int main(void)
{
	struct moe_attach_params none = default_params();

	jobs_begin();
	none.cache_expert_num = 0;
	test_refused("no slots", none, -ENOTSUP, "cache_expert_num");
	if (strcmp(test_device(), "host") == 0)
		test_refused("host", default_params(), -EOPNOTSUPP, "attach to a GPU");
	else if (getenv("CUSIM_NO_DMA_BUF"))
		test_refused("a driver without", default_params(), -EOPNOTSUPP, "dma-buf");
	else
		test_content();
	return tap_done();
}
