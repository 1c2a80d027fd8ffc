/* SPDX-License-Identifier: MIT */
#include "daemon/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/closer.h"
#include "daemon/tier.h"
#include "settings/settings.h"

#define BOOKS_MAGIC 0x31736b62656f6dull /* "moebks1" */
#define BOOKS_VERSION 3

/* All but the model, which is the caller's to free. */
static struct resident *entry_free(struct entry *entry)
{
	struct resident *model = entry ? entry->model : NULL;

	if (entry) {
		mover_free(entry->mover);
		tier_free(entry->tier);
		if (entry->books)
			munmap(entry->books, entry->books->bytes);
		close_fd(entry->books_fd);
		tally_close(entry->tally);
		close_fd(entry->tally_fd);
		free(entry);
	}
	return model;
}

/* In a thread: a large model takes seconds to be given back, copies of its hot experts as well, and reads of a tier
 * that are under way as long as the disk takes. */
static void free_entry(void *entry)
{
	resident_free(entry_free(entry));
}

static struct entry *find_name(const struct registry *registry, const char *name)
{
	for (struct entry *e = registry->head; e; e = e->next)
		if (strcmp(e->model->manifest->name, name) == 0)
			return e;
	return NULL;
}

static int check_free(const struct registry *registry, const char *name, struct moe_error *err)
{
	if (find_name(registry, name))
		return moe_error_set(err, -EEXIST,
				     "model '%s' is loaded already; unload it or give another name (--name)", name);
	return 0;
}

int registry_check_name(const struct registry *registry, const char *name, struct moe_error *err)
{
	const int r = settings_check_word(name, err);

	return r < 0 ? r : check_free(registry, name, err);
}

/* -- books -------------------------------------------------------------------------------------------------------- */

/* Behind the counters of the layers lie those of the frames, their table, and the heat. */
static uint64_t books_bytes(uint64_t layers, uint64_t frames, uint64_t cells)
{
	return ALIGN_UP(
		sizeof(struct model_books) + layers * (sizeof(struct served_layer) + sizeof(struct moe_layer_stats)) +
			sizeof(struct frames_counters) + frames * sizeof(uint32_t) + cells * sizeof(struct heat_cell),
		(uint64_t)MOE_RING_PAGE);
}

static struct frames_counters *books_counters(const struct entry *entry)
{
	return (struct frames_counters *)(entry->retired + entry->books->n_layers);
}

static uint32_t *books_table(const struct entry *entry)
{
	return (uint32_t *)(books_counters(entry) + 1);
}

int registry_open_books(struct model_books **ret, int fd, struct moe_error *err)
{
	struct model_books head;
	uint64_t bytes;
	void *map;
	int r;

	if (fd < 0 || pread(fd, &head, sizeof head, 0) != sizeof head || head.magic != BOOKS_MAGIC)
		return moe_error_set(err, -EBADMSG, "books of a model: not moe-expertd's");
	if (head.version != BOOKS_VERSION || head.bytes != books_bytes(head.n_layers, head.frames, head.cells) ||
	    head.n_pools > MOE_POOLS_MAX || !memchr(head.path, 0, sizeof head.path) ||
	    !memchr(head.family, 0, sizeof head.family))
		return moe_error_set(err, -EPROTO, "books of a model: version %u found, %d expected", head.version,
				     BOOKS_VERSION);
	r = memfd_verify(fd, head.bytes, F_SEAL_SHRINK | F_SEAL_GROW, &bytes, "books of a model", err);
	if (r == 0)
		r = memfd_map(&map, fd, head.bytes, PROT_READ | PROT_WRITE, "books of a model", err);
	if (r == 0)
		*ret = map;
	return r;
}

static uint32_t heat_cells(const struct resident *model)
{
	return model->manifest->n_moe_layers * model->manifest->n_experts;
}

static struct model_books new_books(const struct resident *model)
{
	struct model_books books = {.magic = BOOKS_MAGIC,
				    .version = BOOKS_VERSION,
				    .n_layers = model->manifest->n_layers,
				    .cells = heat_cells(model)};

	books.bytes = books_bytes(books.n_layers, model->frames, books.cells);
	store_fill_books(&books, model);
	return books;
}

struct model_books *registry_new_books(const struct resident *model)
{
	const struct model_books head = new_books(model);
	struct model_books *books = calloc(1, head.bytes);

	if (books)
		*books = head;
	return books;
}

static int make_books(struct entry *entry, struct moe_error *err)
{
	const struct model_books head = new_books(entry->model);
	void *map;
	int r;

	entry->books_fd = memfd_new("moe-books", head.bytes, err);
	if (entry->books_fd < 0)
		return entry->books_fd;
	r = memfd_map(&map, entry->books_fd, head.bytes, PROT_READ | PROT_WRITE, "books of a model", err);
	if (r < 0)
		return r;
	entry->books = map;
	*entry->books = head;
	return 0;
}

static int enter(struct registry *registry, struct entry *entry, struct moe_error *err)
{
	struct entry **at = &registry->head;
	const bool new = entry->books_fd < 0;
	int r = check_free(registry, entry->model->manifest->name, err); /* an older daemon took other names, too */

	if (r == 0)
		r = tally_new(&entry->tally, &entry->tally_fd, entry->model->manifest->n_layers, err);
	if (r == 0 && new)
		r = make_books(entry, err);
	else if (r == 0)
		r = registry_open_books(&entry->books, entry->books_fd, err);
	if (r == 0 && (entry->books->n_layers != entry->model->manifest->n_layers ||
		       entry->books->cells != heat_cells(entry->model)))
		r = moe_error_set(err, -EBADMSG, "books of a model: those of another one");
	if (r < 0) {
		entry->model = NULL; /* the caller's */
		entry_free(entry);
		return r;
	}
	entry->served = (struct served_layer *)(entry->books + 1);
	entry->retired = (struct moe_layer_stats *)(entry->served + entry->books->n_layers);
	entry->heat = (struct heat_cell *)(books_table(entry) + entry->books->frames);
	for (uint32_t i = 0; new &&i < entry->model->frames; i++)
		books_table(entry)[i] = i + 1; /* as tiered_read() has left them */
	while (*at)
		at = &(*at)->next;
	*at = entry;
	registry->n++;
	return 0;
}

static struct entry *entry_new(struct resident *model)
{
	struct entry *entry = calloc(1, sizeof *entry);

	if (!entry)
		return NULL;
	entry->model = model;
	entry->books_fd = entry->tally_fd = -1;
	return entry;
}

int registry_adopt(struct registry *registry, struct resident *model, int books_fd, struct moe_error *err)
{
	struct entry *entry = entry_new(model);

	if (!entry) {
		close_fd(books_fd);
		return moe_error_sys(err, -ENOMEM, "model '%s'", model->manifest->name);
	}
	entry->books_fd = books_fd;
	return enter(registry, entry, err);
}

int registry_add(struct registry *registry, struct resident *model, struct entry **ret, struct moe_error *err)
{
	struct entry *entry = entry_new(model);
	int r;

	if (!entry)
		return moe_error_sys(err, -ENOMEM, "model '%s'", model->manifest->name);
	r = enter(registry, entry, err);
	if (r == 0)
		*ret = entry;
	return r;
}

int registry_adopt_tally(struct entry *entry, int fd, struct moe_error *err)
{
	_cleanup_close_ int own = fd;
	struct tally *tally;
	int r = tally_open(&tally, own, entry->model->manifest->n_layers, err);

	if (r < 0)
		return r;
	tally_close(entry->tally);
	close_fd(entry->tally_fd);
	entry->tally = tally;
	entry->tally_fd = steal_fd(&own);
	return 0;
}

int registry_start_tier(struct entry *entry, struct loop *loop, struct moe_error *err)
{
	const struct policy_ops *policy;

	if (!entry->model->frames)
		return 0;
	policy = policy_at(entry->books->policy);
	if (!policy || policy->slots_only) {
		policy = &policy_lru;
		entry->books->policy = policy_index(policy);
	}
	return tier_new(&entry->tier, entry->model, policy, books_table(entry), books_counters(entry), loop, err);
}

void registry_start_mover(struct entry *entry, const struct mover_params *params)
{
	struct mover_params p = *params;
	struct moe_error err;
	int r;

	p.model = entry->model;
	r = mover_new(&entry->mover, &p, &err);
	if (r == -EOPNOTSUPP)
		log_info("%s", err.text);
	else if (r < 0)
		log_warning("no copies of hot experts: %s", err.text);
}

void registry_stop_movers(struct registry *registry)
{
	for (struct entry *e = registry->head; e; e = e->next)
		e->mover = mover_free(e->mover);
	movers_settle();
}

int registry_set_policy(struct entry *entry, const char *name, struct moe_error *err)
{
	const struct policy_ops *policy = policy_find(name);
	const char *model = entry->model->manifest->name;
	int r;

	if (!policy || policy->slots_only)
		return moe_error_set(err, -EINVAL, "model '%s': policy '%.40s' found, one of %s expected", model, name,
				     policy_frames_names());
	if (!entry->tier)
		return moe_error_set(
			err, -EOPNOTSUPP,
			"model '%s' is all in memory: only a tiered one (PoolMax=) has a policy here; that of "
			"a worker's slots is the worker's",
			model);
	r = frames_set_policy(tier_frames(entry->tier), policy);
	if (r == -E2BIG)
		return moe_error_set(err, r,
				     "model '%s': policy %s is for at most %u experts in a layer and 1 GiB of tables: "
				     "%u layers of %u "
				     "found; any but ebco will do",
				     model, name, FRAMES_BY_PAIRS_MAX, entry->model->manifest->n_moe_layers,
				     entry->model->manifest->n_experts);
	if (r < 0)
		return moe_error_sys(err, r, "model '%s': policy %s", model, name);
	entry->books->policy = policy_index(policy);
	return 0;
}

/* -- finding ------------------------------------------------------------------------------------------------------ */

static void list_names(const struct registry *registry, char *to, size_t size)
{
	size_t used = 0;

	snprintf(to, size, "%s", registry->head ? "" : "no model");
	for (const struct entry *e = registry->head; e && used < size; e = e->next)
		used += (size_t)snprintf(to + used, size - used, "%s%s", used ? ", " : "", e->model->manifest->name);
}

static void digest_text(char to[33], const uint8_t *digest)
{
	for (int i = 0; i < MOE_DIGEST_BYTES; i++)
		snprintf(to + 2 * i, 3, "%02x", digest[i]);
}

static bool digest_given(const uint8_t *digest)
{
	static const uint8_t zeros[MOE_DIGEST_BYTES];

	return digest && memcmp(digest, zeros, sizeof zeros) != 0;
}

static int find_any(const struct registry *registry, const uint8_t *digest, struct entry **ret, struct moe_error *err)
{
	char names[256], hex[33];

	list_names(registry, names, sizeof names);
	if (digest_given(digest)) {
		for (struct entry *e = registry->head; e; e = e->next)
			if (memcmp(e->model->manifest->digest, digest, MOE_DIGEST_BYTES) == 0) {
				*ret = e;
				return 0;
			}
		digest_text(hex, digest);
		return moe_error_set(err, -ENOENT, "no model with digest %s is loaded (loaded: %s)", hex, names);
	}
	if (registry->n == 1) {
		*ret = registry->head;
		return 0;
	}
	return moe_error_set(err, -ENOENT,
			     registry->n ? "several models are loaded (%s): name one" : "%s is loaded: moectl load DIR",
			     names);
}

int registry_find(const struct registry *registry, const char *name, const uint8_t *digest, struct entry **ret,
		  struct moe_error *err)
{
	char names[256], found[33], asked[33];
	struct entry *entry;

	if (!*name)
		return find_any(registry, digest, ret, err);
	entry = find_name(registry, name);
	if (!entry) {
		list_names(registry, names, sizeof names);
		return moe_error_set(err, -ENOENT, "no model '%s' is loaded (loaded: %s): moectl load DIR --name %s",
				     name, names, name);
	}
	if (digest_given(digest) && memcmp(entry->model->manifest->digest, digest, MOE_DIGEST_BYTES) != 0) {
		digest_text(found, entry->model->manifest->digest);
		digest_text(asked, digest);
		return moe_error_set(err, -ESTALE, "model '%s': digest %s is loaded, %s was asked for: other weights",
				     name, found, asked);
	}
	*ret = entry;
	return 0;
}

struct entry *registry_by_epoch(const struct registry *registry, uint64_t epoch)
{
	struct entry *e = registry->head;

	while (e && e->model->manifest->epoch != epoch)
		e = e->next;
	return e;
}

struct entry *registry_by_path(const struct registry *registry, const char *path, const char *name)
{
	struct entry *e = registry->head;

	while (e && (strcmp(e->model->path, path) != 0 || strcmp(e->model->manifest->name, name) != 0))
		e = e->next;
	return e;
}

int registry_remove(struct registry *registry, const char *name, struct moe_error *err)
{
	struct entry *entry = find_name(registry, name), **at = &registry->head;
	char names[256];

	if (!entry) {
		list_names(registry, names, sizeof names);
		return moe_error_set(err, -ENOENT, "no model '%s' is loaded (loaded: %s)", name, names);
	}
	if (entry->model->sessions > 0)
		return moe_error_set(err, -EBUSY, "model '%s' has %u sessions: end them first (moectl sessions)", name,
				     entry->model->sessions);
	while (*at != entry)
		at = &(*at)->next;
	*at = entry->next;
	registry->n--;
	if (entry->mover)
		mover_part(entry->mover);
	if (entry->tier)
		tier_part(entry->tier);
	closer_free(free_entry, entry);
	return 0;
}

void registry_clear(struct registry *registry)
{
	while (registry->head) {
		struct entry *next = registry->head->next;

		resident_free(entry_free(registry->head));
		registry->head = next;
	}
	registry->n = 0;
}

uint64_t registry_model_bytes(const struct resident *model)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < model->n_pools; i++)
		bytes += model->pools[i].bytes;
	return bytes;
}

uint64_t registry_bytes(const struct registry *registry)
{
	uint64_t bytes = 0;

	for (const struct entry *e = registry->head; e; e = e->next)
		bytes += registry_model_bytes(e->model);
	return bytes;
}
