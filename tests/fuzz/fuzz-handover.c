/* SPDX-License-Identifier: MIT */
/*
 * What a keeper hands over of a model: any words in its manifest and its books, pool files of any size. The model is
 * refused in one line, or it is as usable as one that was loaded: all of each record is there, and can be cut into
 * slices.
 *
 * The input: words that differ from a sound model's. A byte says of what (0: the manifest, 1: the books, 2: the pool
 * file, whose size the word says), then 3 bytes of place, counted in words, and 8 bytes.
 */
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/memfd.h"
#include "tests/fuzz/fuzz-daemon.h"

#define POOL_BYTES_MAX (1u << 20)

struct inheritance {
	uint64_t *words[2], bytes[2]; /* manifest, books */
	int pool;
};

static void take_words(struct inheritance *in, struct fuzz_bytes *from)
{
	uint64_t pool_bytes = 0; /* the last one counts: only that file is made */

	while (from->left > 0) {
		const uint64_t what = fuzz_number(from, 1), at = fuzz_number(from, 3), word = fuzz_number(from, 8);

		if (what < 2)
			in->words[what][at % (in->bytes[what] / 8)] = word;
		else if (what == 2)
			pool_bytes = word % POOL_BYTES_MAX + 1;
	}
	if (pool_bytes > 0) {
		close_fd(in->pool);
		in->pool = memfd_new("pool", pool_bytes, NULL);
		fuzz_check(in->pool >= 0);
	}
}

/* Every byte that is said to be there is read by somebody; the ends of each part tell. */
static void use(const struct resident *r)
{
	const struct moe_manifest *m = r->manifest;
	volatile uint8_t sum = 0;

	fuzz_check(memchr(m->name, 0, sizeof m->name) && m->n_pools == r->n_pools);
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		fuzz_check(r->layer_index[layer] >= -1 && r->layer_index[layer] < (int64_t)m->n_moe_layers);
	for (uint32_t i = 0; i < m->n_layouts; i++) {
		struct moe_slice slice;

		for (uint32_t tp = 1; tp <= MIN(moe_slice_units(&r->layouts[i]), 4u); tp++)
			moe_slice_of(&slice, &r->layouts[i], tp - 1, tp);
	}
	for (uint32_t row = 0; row < m->n_moe_layers && !r->frames; row++)
		for (uint32_t expert = 0; expert < m->n_experts; expert++)
			for (uint32_t share = 0; share < m->n_pools; share++) {
				const uint8_t *at = resident_share(r, row, expert, share);

				sum ^= at[0] ^ at[r->layouts[resident_layout(r, row)].record_bytes - 1];
			}
}

static void adopt(struct store_left *left, int books_fd, bool changed)
{
	struct registry registry = {0};
	struct moe_error err = {0};
	struct resident *model;
	int r = registry_open_books(&left->books, books_fd, &err);

	if (r < 0) {
		fuzz_check(changed);
		fuzz_check_refused(r, &err);
		store_left_close(left);
		return;
	}
	r = store_adopt(&model, left, fuzz_daemon.service->host, &err);
	munmap(left->books, left->books->bytes);
	if (r == 0) {
		use(model);
		r = registry_adopt(&registry, model, dup(books_fd), &err);
		if (r < 0)
			resident_free(model);
	}
	if (r < 0)
		fuzz_check_refused(r, &err);
	fuzz_check(registry.n == (r == 0) && (r == 0 || changed));
	registry_clear(&registry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {.at = data, .left = size};
	struct inheritance in;
	struct store_left left = {.n_pools = 1};
	const struct entry *entry;
	int books;

	fuzz_daemon_start();
	fuzz_daemon_load();
	entry = fuzz_daemon.service->registry.head;
	in = (struct inheritance){.bytes = {entry->model->manifest->bytes, entry->books->bytes},
				  .pool = dup(entry->model->pools[0].fd)};
	for (int i = 0; i < 2; i++) {
		in.words[i] = malloc(in.bytes[i]);
		fuzz_check(in.words[i]);
		memcpy(in.words[i], i ? (const void *)entry->books : (const void *)entry->model->manifest, in.bytes[i]);
	}
	take_words(&in, &from);
	left.manifest_fd = memfd_new_sealed("manifest", in.words[0], in.bytes[0], NULL);
	left.pools[0] = in.pool;
	books = memfd_new("books", in.bytes[1], NULL);
	fuzz_check(left.manifest_fd >= 0 && books >= 0 &&
		   pwrite(books, in.words[1], in.bytes[1], 0) == (ssize_t)in.bytes[1]);
	free(in.words[0]);
	free(in.words[1]);
	adopt(&left, books, size > 0);
	close_fd(books);
	return 0;
}
