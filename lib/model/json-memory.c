/* SPDX-License-Identifier: MIT */
#include "model/json-memory.h"

#include <errno.h>
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/util.h"

#define BLOCK_ALIGN 16u
#define GAP 16u /* behind each block: AddressSanitizer sees who writes there */
#define PAGE 4096u
#define AHEAD (256u << 10) /* whole pages that are made at once: one call is cheaper than 64 page faults */

/* What jansson takes for what a character begins, its own tables and their growth counted, and half as much again. */
#define OBJECT_BYTES 512u
#define ARRAY_BYTES 384u
#define MEMBER_BYTES 384u /* after a comma or a colon */
#define QUOTE_BYTES 96u
#define CHARACTER_BYTES 8u         /* in the value, in the key, in a buffer that doubles */
#define DOCUMENT_BYTES (64u << 10) /* and where there is nothing */

/* At the start of its mapping. Guarded by `lock`, but for `used` and `there`: only its thread takes blocks. */
struct reservation {
	struct reservation *next;
	uint64_t bytes, used, there; /* all of it, what is taken, what has pages */
	uint64_t live;               /* blocks, and one while the parser is at work */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reservation *reservations;
static _Atomic uint32_t n_reservations;
static _Atomic uint64_t fallbacks;
static __thread struct reservation *parsing;

/* -- reservations ------------------------------------------------------------------------------------------------- */

uint64_t json_memory_bound(const char *text, size_t bytes)
{
	uint64_t bound;

	if (!checked_mul(&bound, bytes, CHARACTER_BYTES + OBJECT_BYTES) ||
	    !checked_add(&bound, bound, DOCUMENT_BYTES + PAGE))
		return 0; /* nothing below overflows otherwise: a character is one of the kinds */
	bound = DOCUMENT_BYTES + (uint64_t)bytes * CHARACTER_BYTES;
	for (size_t i = 0; i < bytes; i++) {
		switch (text[i]) {
		case '{':
			bound += OBJECT_BYTES;
			break;
		case '[':
			bound += ARRAY_BYTES;
			break;
		case ',':
		case ':':
			bound += MEMBER_BYTES;
			break;
		case '"':
			bound += QUOTE_BYTES;
			break;
		default:
			break;
		}
	}
	return ALIGN_UP(bound, (uint64_t)PAGE);
}

static struct reservation *reserve(uint64_t bytes)
{
	struct reservation *r;

	if (bytes == 0)
		return NULL;
	r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r == MAP_FAILED)
		return NULL;
	*r = (struct reservation){.bytes = bytes, .used = ALIGN_UP(sizeof *r, (uint64_t)BLOCK_ALIGN), .live = 1};
	ASAN_POISON_MEMORY_REGION((char *)r + r->used, bytes - r->used);
	pthread_mutex_lock(&lock);
	r->next = reservations;
	reservations = r;
	atomic_fetch_add(&n_reservations, 1);
	pthread_mutex_unlock(&lock);
	return r;
}

/* Under the lock. NULL: it is malloc's. */
static struct reservation *find(const void *block)
{
	struct reservation *r = reservations;

	while (r && ((const char *)block < (const char *)r || (const char *)block >= (const char *)r + r->bytes))
		r = r->next;
	return r;
}

/* Under the lock: one user less. The reservation, when it was the last: out of the list, to be unmapped. */
static struct reservation *leave(struct reservation *r)
{
	struct reservation **at = &reservations;

	if (--r->live > 0)
		return NULL;
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	atomic_fetch_sub(&n_reservations, 1);
	return r;
}

static void unmap(struct reservation *r)
{
	if (!r)
		return;
	ASAN_UNPOISON_MEMORY_REGION(r, r->bytes);
	munmap(r, r->bytes);
}

/* -- jansson's allocator ------------------------------------------------------------------------------------------ */

/* Where it fails, pages come one by one. */
static void make_pages(struct reservation *r, uint64_t end)
{
	uint64_t n = MIN(ALIGN_UP(end - r->there, (uint64_t)AHEAD), r->bytes - r->there);

	madvise((char *)r + r->there, n, MADV_POPULATE_WRITE);
	r->there += n;
}

static void *take(size_t bytes)
{
	struct reservation *r = parsing;
	const uint64_t whole = ALIGN_UP((uint64_t)bytes, (uint64_t)BLOCK_ALIGN) + GAP;
	void *block;

	if (!r)
		return malloc(bytes);
	if (bytes > r->bytes || whole > r->bytes - r->used) {
		atomic_fetch_add(&fallbacks, 1);
		return malloc(bytes);
	}
	block = (char *)r + r->used;
	r->used += whole;
	if (r->used > r->there)
		make_pages(r, r->used);
	ASAN_UNPOISON_MEMORY_REGION(block, bytes);
	pthread_mutex_lock(&lock);
	r->live++;
	pthread_mutex_unlock(&lock);
	return block;
}

static void give_back(void *block)
{
	struct reservation *r;

	if (!block)
		return;
	if (atomic_load(&n_reservations) == 0) {
		free(block);
		return;
	}
	pthread_mutex_lock(&lock);
	r = find(block);
	if (!r) {
		pthread_mutex_unlock(&lock);
		free(block);
		return;
	}
	r = leave(r);
	pthread_mutex_unlock(&lock);
	unmap(r);
}

static void take_over(void)
{
	json_set_alloc_funcs(take, give_back);
}

/* -- parsing ------------------------------------------------------------------------------------------------------ */

int json_memory_parse(json_t **ret, const char *text, size_t bytes, size_t flags, json_error_t *why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct reservation *r;
	json_t *json;

	pthread_once(&once, take_over);
	r = reserve(json_memory_bound(text, bytes));
	if (!r)
		return -ENOMEM;
	parsing = r;
	json = json_loadb(text, bytes, flags, why);
	parsing = NULL;
	pthread_mutex_lock(&lock);
	r = leave(r);
	pthread_mutex_unlock(&lock);
	unmap(r);
	if (!json)
		return json_error_code(why) == json_error_out_of_memory ? -ENOMEM : -EINVAL;
	*ret = json;
	return 0;
}

int json_memory_parse_any(json_t **ret, const char *text, size_t bytes, size_t flags, json_error_t *why)
{
	const int r = json_memory_parse(ret, text, bytes, flags, why);

	if (r != -EINVAL || json_error_code(why) != json_error_numeric_overflow)
		return r;
	return json_memory_parse(ret, text, bytes, flags | JSON_DECODE_INT_AS_REAL, why);
}

void json_memory_stats(uint64_t *ret_reserved, uint64_t *ret_fallbacks)
{
	*ret_reserved = 0;
	pthread_mutex_lock(&lock);
	for (struct reservation *r = reservations; r; r = r->next)
		*ret_reserved += r->bytes;
	pthread_mutex_unlock(&lock);
	*ret_fallbacks = atomic_load(&fallbacks);
}
