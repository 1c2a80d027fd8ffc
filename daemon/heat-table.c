/* SPDX-License-Identifier: MIT */
#include "daemon/heat-table.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

static_assert(sizeof(struct heat_page) == 64, "in front of the cells");

static uint64_t cells_of(const struct heat_page *page)
{
	return (uint64_t)page->rows * page->experts;
}

uint64_t heat_bytes(uint32_t rows, uint32_t experts)
{
	const uint64_t cells = (uint64_t)rows * experts;

	return cells == 0 || cells > HEAT_CELLS_MAX ? 0 : sizeof(struct heat_page) + cells * sizeof(uint32_t);
}

void heat_page_init(struct heat_page *page, uint32_t rows, uint32_t experts, const uint8_t *digest)
{
	*page = (struct heat_page){
		.magic = HEAT_FILE_MAGIC, .version = HEAT_FILE_VERSION, .rows = rows, .experts = experts};
	memcpy(page->digest, digest, sizeof page->digest);
}

bool heat_page_good(const struct heat_page *page, uint64_t bytes, uint32_t rows, uint32_t experts,
		    const uint8_t *digest)
{
	return bytes >= sizeof *page && page->magic == HEAT_FILE_MAGIC && page->version == HEAT_FILE_VERSION &&
	       page->rows == rows && page->experts == experts && heat_bytes(rows, experts) != 0 &&
	       bytes >= heat_bytes(rows, experts) && memcmp(page->digest, digest, sizeof page->digest) == 0;
}

uint64_t heat_table_age(struct heat_page *page, uint64_t steps, uint64_t every)
{
	const uint64_t sum = steps > UINT64_MAX - page->steps ? UINT64_MAX : page->steps + steps;
	const uint64_t times = sum / every - page->steps / every;

	page->steps = sum;
	for (uint64_t i = 0, n = cells_of(page); times > 0 && i < n; i++)
		page->cells[i] = times < 32 ? page->cells[i] >> times : 0;
	return times > 1 ? times : 1;
}

void heat_table_forget(struct heat_page *page)
{
	page->steps = page->saved_steps = 0;
	memset(page->cells, 0, cells_of(page) * sizeof *page->cells);
}

/* -- on disk ------------------------------------------------------------------------------------------------------ */

static uint64_t sum_of(const struct heat_page *page)
{
	struct heat_page head = *page;
	XXH3_state_t state;

	head.checksum = 0;
	XXH3_64bits_reset(&state);
	XXH3_64bits_update(&state, &head, sizeof head);
	XXH3_64bits_update(&state, page->cells, cells_of(page) * sizeof *page->cells);
	return XXH3_64bits_digest(&state);
}

void heat_encode(struct heat_page *to, const struct heat_page *page)
{
	memcpy(to, page, heat_bytes(page->rows, page->experts));
	to->saved_steps = to->steps;
	to->checksum = sum_of(to);
}

static int refuse(struct moe_error *err, const char *what, uint64_t found, uint64_t expected)
{
	return moe_error_set(err, -EBADMSG, "%s %llu found, %llu expected", what, (unsigned long long)found,
			     (unsigned long long)expected);
}

int heat_decode(struct heat_page *page, const void *from, uint64_t bytes, struct moe_error *err)
{
	const uint64_t expected = heat_bytes(page->rows, page->experts);
	const struct heat_page *file = from;

	if (bytes < sizeof *file || file->magic != HEAT_FILE_MAGIC)
		return moe_error_set(err, -EBADMSG, "not a heat file of moe-expertd");
	if (file->version != HEAT_FILE_VERSION)
		return refuse(err, "version", file->version, HEAT_FILE_VERSION);
	if (memcmp(file->digest, page->digest, sizeof file->digest) != 0)
		return moe_error_set(err, -EBADMSG, "the heat of another model");
	if (file->rows != page->rows)
		return refuse(err, "layers", file->rows, page->rows);
	if (file->experts != page->experts)
		return refuse(err, "experts", file->experts, page->experts);
	if (bytes != expected)
		return refuse(err, "bytes", bytes, expected);
	if (file->checksum != sum_of(file))
		return moe_error_set(err, -EBADMSG, "its checksum does not fit: damaged");
	if (file->reserved || file->saved_steps != file->steps)
		return moe_error_set(err, -EBADMSG, "fields that fit no version");
	memcpy(page->cells, file->cells, cells_of(page) * sizeof *page->cells);
	page->steps = page->saved_steps = file->steps;
	return 0;
}
