/* SPDX-License-Identifier: MIT */
/*
 * Heat that lasts: it ages by the formula of heat-table.h, against the formula in another form; a file comes back as it
 * was; one that is damaged anywhere, too short, too long, of another model or no file at all is refused with its name,
 * and what was there stays.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/heat-file.h"
#include "tests/tap.h"

#define ROWS 3
#define EXPERTS 7
#define CELLS (ROWS * EXPERTS)

static const uint8_t digest[MOE_DIGEST_BYTES] = {0xab, 1, 2, 3};

static unsigned long long seed;

static struct heat_page *page_new(uint32_t rows, uint32_t experts, const uint8_t *of)
{
	struct heat_page *page = calloc(1, heat_bytes(rows, experts));

	require(page, "memory");
	heat_page_init(page, rows, experts, of);
	return page;
}

static void test_age(void)
{
	struct heat_page *p = page_new(ROWS, EXPERTS, digest);
	bool good = true;

	heat_table_add(p, 0, 9);
	ok(heat_table_age(p, 15, 16) == 1 && p->cells[0] == 9, "15 steps of 16 change nothing");
	ok(heat_table_age(p, 1, 16) == 1 && p->cells[0] == 4 && p->steps == 16, "the 16th halves, rounded down");
	ok(heat_table_age(p, 32, 16) == 2 && p->cells[0] == 1,
	   "32 more at once do so twice, and share what they bring");
	heat_table_add(p, 1, UINT32_MAX - 1);
	heat_table_add(p, 1, 5);
	ok(p->cells[1] == UINT32_MAX, "a cell stops at its largest");
	heat_table_add(p, 2, UINT64_MAX - UINT32_MAX);
	ok(p->cells[2] == UINT32_MAX, "also when more comes than it could ever have");
	heat_table_age(p, (uint64_t)16 * 40, 16);
	for (uint32_t i = 0; i < CELLS; i++)
		good &= p->cells[i] == 0;
	ok(good, "40 halvings leave nothing");
	heat_table_age(p, UINT64_MAX, 1);
	ok(p->steps == UINT64_MAX && heat_table_age(p, 5, 1) == 1, "steps stop at their largest");
	heat_table_add(p, 0, 3);
	heat_table_forget(p);
	ok(p->steps == 0 && p->cells[0] == 0 && p->experts == EXPERTS, "forgotten: empty, and of the same shape");
	free(p);
}

/* One step at a time is the law; batches that stay within a period are the same. */
static void test_batches(void)
{
	struct heat_page *p = page_new(ROWS, EXPERTS, digest);
	uint64_t cells[CELLS] = {0}, steps = 0;
	bool good = true;

	for (int round = 0; round < 2000 && good; round++) {
		const uint64_t every = 64, n = tap_random(&seed) % 64, before = steps, pairs = tap_random(&seed) % 1000;
		const uint32_t cell = tap_random(&seed) % CELLS;

		for (uint64_t i = 0; i < n; i++)
			if (++steps % every == 0)
				for (int c = 0; c < CELLS; c++)
					cells[c] /= 2;
		cells[cell] += pairs;
		good &= heat_table_age(p, n, every) == 1 && p->steps == before + n;
		heat_table_add(p, cell, pairs);
		for (int c = 0; c < CELLS; c++)
			good &= p->cells[c] == cells[c];
	}
	ok(good, "2,000 batches are as step after step");
	free(p);
}

/* -- on disk ------------------------------------------------------------------------------------------------------ */

static void fill(struct heat_page *p)
{
	for (uint32_t i = 0; i < CELLS; i++)
		p->cells[i] = (uint32_t)tap_random(&seed);
	p->steps = 12345;
}

static void test_codec(void)
{
	const uint64_t bytes = heat_bytes(ROWS, EXPERTS);
	struct heat_page *p = page_new(ROWS, EXPERTS, digest), *q = page_new(ROWS, EXPERTS, digest);
	uint8_t *file = calloc(1, bytes + 8);
	struct moe_error err = {0};
	uint32_t taken = 0, changed = 0;

	fill(p);
	heat_encode((struct heat_page *)file, p);
	ok(heat_decode(q, file, bytes, &err) == 0 && q->steps == 12345 && q->saved_steps == 12345 &&
		   memcmp(q->cells, p->cells, CELLS * 4) == 0,
	   "what is written comes back");
	for (uint64_t bit = 0; bit < 8 * bytes; bit++) {
		file[bit / 8] ^= (uint8_t)(1 << bit % 8);
		taken += heat_decode(q, file, bytes, &err) != -EBADMSG;
		changed += memcmp(q->cells, p->cells, CELLS * 4) != 0 || q->steps != 12345;
		file[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	ok(taken == 0 && changed == 0, "each bit that is another is noticed, and nothing is taken: %u, %u", taken,
	   changed);
	for (uint64_t n = 0; n < bytes + 8; n++)
		taken += n != bytes && heat_decode(q, file, n, &err) != -EBADMSG;
	ok(taken == 0, "so is another length");
	free(file);
	free(p);
	free(q);
}

static void test_shapes(void)
{
	static const uint8_t other[MOE_DIGEST_BYTES] = {9};
	struct heat_page *p = page_new(ROWS, EXPERTS, digest), *file = page_new(ROWS, EXPERTS, digest);
	struct heat_page *q = page_new(ROWS, EXPERTS, other), *turned = page_new(EXPERTS, ROWS, digest);
	const uint64_t bytes = heat_bytes(ROWS, EXPERTS);
	struct moe_error err = {0};

	fill(p);
	heat_encode(file, p);
	ok(heat_decode(q, file, bytes, &err) == -EBADMSG, "of another model: %s", err.text);
	ok(heat_decode(turned, file, bytes, &err) == -EBADMSG, "of another shape: %s", err.text);
	ok(heat_bytes(0, 5) == 0 && heat_bytes(1u << 31, 1u << 31) == 0 && heat_bytes(HEAT_CELLS_MAX, 2) == 0,
	   "no table is empty, or too large");
	ok(heat_page_good(p, bytes, ROWS, EXPERTS, digest) && !heat_page_good(p, bytes - 1, ROWS, EXPERTS, digest) &&
		   !heat_page_good(p, bytes, EXPERTS, ROWS, digest) && !heat_page_good(p, bytes, ROWS, EXPERTS, other),
	   "a page is that of one shape and model");
	free(p);
	free(q);
	free(file);
	free(turned);
}

static void put(const char *path, const void *bytes, size_t n)
{
	FILE *to = fopen(path, "we");

	require(to && fwrite(bytes, 1, n, to) == n && fclose(to) == 0, "a file of %zu bytes", n);
}

static void test_files(const char *folder)
{
	struct heat_page *p = page_new(ROWS, EXPERTS, digest), *q = page_new(ROWS, EXPERTS, digest);
	struct moe_error err = {0};
	struct heat_save *save;
	char path[256], other[300];
	struct stat st;

	snprintf(path, sizeof path, "%s/heat-ab010203000000000000000000000000", folder);
	ok(heat_file_read(folder, q, &err) == -ENOENT, "no file: %s", err.text);
	fill(p);
	ok(heat_save_start(&save, folder, p, NULL) == 0 && heat_save_join(save, &err) == 0, "saved beside the reactor");
	ok(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600, "for nobody else to read");
	ok(heat_file_read(folder, q, &err) == 0 && memcmp(q->cells, p->cells, CELLS * 4) == 0, "and read again");
	snprintf(other, sizeof other, "%s.new", path);
	ok(access(other, F_OK) != 0, "nothing else is left");
	put(other, "half", 4);
	ok(heat_save_start(&save, folder, p, NULL) == 0 && heat_save_join(save, &err) == 0 && access(other, F_OK) != 0,
	   "what a killed daemon has left is no hindrance");
	put(path, "short", 5);
	ok(heat_file_read(folder, q, &err) == -EBADMSG && strstr(err.text, path), "one that is short: %s", err.text);
	ok(heat_file_remove(folder, p, &err) == 0 && heat_file_remove(folder, p, &err) == 0 && access(path, F_OK) != 0,
	   "removed, and once more");
	ok(symlink("/dev/zero", path) == 0 && heat_file_read(folder, q, &err) == -ELOOP, "a link: %s", err.text);
	unlink(path);
	ok(mkfifo(path, 0600) == 0 && heat_file_read(folder, q, &err) == -EBADMSG, "a pipe: %s", err.text);
	unlink(path);
	ok(mkdir(path, 0700) == 0 && heat_file_read(folder, q, &err) < 0, "a folder: %s", err.text);
	ok(heat_save_start(&save, folder, p, NULL) == 0 && heat_save_join(save, &err) < 0 && strstr(err.text, path),
	   "which nothing can be saved over: %s", err.text);
	rmdir(path);
	ok(heat_save_start(&save, "/nowhere/at/all", p, NULL) == 0 && heat_save_join(save, &err) == -ENOENT,
	   "no folder: %s", err.text);
	free(p);
	free(q);
}

int main(void)
{
	char folder[TAP_TMP];

	seed = tap_seed();
	test_age();
	test_batches();
	test_codec();
	test_shapes();
	require(mkdtemp(tap_tmp(folder, "moe-heat.XXXXXX")), "a folder");
	test_files(folder);
	ok(rmdir(folder) == 0, "the folder is empty");
	return tap_done();
}
