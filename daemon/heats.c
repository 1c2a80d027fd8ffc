/* SPDX-License-Identifier: MIT */
#include "daemon/heats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/events.h"
#include "daemon/handover.h"
#include "daemon/heat-file.h"
#include "daemon/registry.h"

/* -- tables ------------------------------------------------------------------------------------------------------- */

static const char *kept_name(char to[48], const uint8_t *digest)
{
	size_t n = (size_t)snprintf(to, 48, "heat.");

	for (int i = 0; i < MOE_DIGEST_BYTES; i++)
		n += (size_t)snprintf(to + n, 48 - n, "%02x", digest[i]);
	return to;
}

/* Where the list has it, or its end. */
static struct heats_table **find(struct heats_table **list, const struct moe_manifest *m)
{
	while (*list && (memcmp((*list)->page->digest, m->digest, sizeof m->digest) != 0))
		list = &(*list)->next;
	return list;
}

static struct heats_table *unlinked(struct heats_table **at)
{
	struct heats_table *t = *at;

	if (t)
		*at = t->next;
	return t;
}

static void table_free(struct heats_table *t)
{
	if (!t)
		return;
	if (t->page)
		munmap(t->page, t->bytes);
	close_fd(t->fd);
	free(t);
}

/* Of the daemon before; false: there is none, or it is not one. */
static bool take_kept(struct heats_table *t, struct handover *handover, const struct moe_manifest *m)
{
	char name[48];
	void *map;

	t->fd = handover_take(handover, "%s", kept_name(name, m->digest));
	if (t->fd < 0)
		return false;
	if (memfd_verify(t->fd, t->bytes, F_SEAL_SHRINK | F_SEAL_GROW, NULL, "heat", NULL) == 0) {
		if (memfd_map(&map, t->fd, t->bytes, PROT_READ | PROT_WRITE, "heat", NULL) < 0) {
			t->fd = (close_fd(t->fd), -1); /* for want of means: it stays kept */
			return false;
		}
		t->page = map;
		if (heat_page_good(t->page, t->bytes, m->n_moe_layers, m->n_experts, m->digest))
			return true;
		munmap(steal_ptr(t->page), t->bytes);
	}
	handover_drop(handover, "%s", name);
	t->fd = (close_fd(t->fd), -1);
	return false;
}

static int make(struct heats_table *t, const struct moe_manifest *m, struct moe_error *err)
{
	void *map;
	int r;

	t->fd = memfd_new("moe-heat", t->bytes, err);
	if (t->fd < 0)
		return t->fd;
	r = memfd_map(&map, t->fd, t->bytes, PROT_READ | PROT_WRITE, "heat", err);
	if (r < 0)
		return r;
	t->page = map;
	heat_page_init(t->page, m->n_moe_layers, m->n_experts, m->digest);
	return 0;
}

void heats_read(struct heats_saved *ret, const char *folder, const struct moe_manifest *m)
{
	const uint64_t bytes = heat_bytes(m->n_moe_layers, m->n_experts);

	ret->page = bytes ? calloc(1, bytes) : NULL;
	if (!ret->page)
		return;
	heat_page_init(ret->page, m->n_moe_layers, m->n_experts, m->digest);
	ret->code = folder ? heat_file_read(folder, ret->page, &ret->error) : -ENOENT;
}

void heats_saved_free(struct heats_saved *saved)
{
	free(saved->page);
	*saved = (struct heats_saved){.page = NULL};
}

static void take_saved(const struct heats *h, struct heats_table *t, const struct moe_manifest *m,
		       const struct heats_saved *saved)
{
	struct heats_saved now = {.page = NULL};
	const char *model = m->name;
	int r;

	if (!saved || !saved->page) {
		heats_read(&now, h->folder, m);
		saved = &now;
	}
	r = saved->page ? saved->code : -ENOMEM;
	if (r == 0)
		memcpy(t->page, saved->page, heat_bytes(m->n_moe_layers, m->n_experts));
	if (r == 0)
		log_info("%s: heat of %llu steps, from %s", model, (unsigned long long)t->page->steps, h->folder);
	else if (!h->folder)
		log_debug("%s: its heat is only in memory: no StateDirectory= or $STATE_DIRECTORY", model);
	else if (r != -ENOENT)
		event_log(EVENT_HEAT_LOST,
			  FACTS(.model = model, .reason = saved->page ? saved->error.text : strerror(ENOMEM)),
			  "%s: its heat begins anew: %s", model, saved->page ? saved->error.text : strerror(ENOMEM));
	heats_saved_free(&now);
}

static int table_new(struct heats_table **ret, const struct heats *h, struct handover *handover,
		     const struct moe_manifest *m, const struct heats_saved *saved, struct moe_error *err)
{
	struct heats_table *t = calloc(1, sizeof *t);
	int r = 0;

	if (!t)
		return moe_error_sys(err, -ENOMEM, "heat");
	*t = (struct heats_table){.fd = -1, .every = h->every, .bytes = heat_bytes(m->n_moe_layers, m->n_experts)};
	if (t->bytes == 0)
		r = moe_error_set(err, -E2BIG, "%u layers of %u experts: at most %u cells", m->n_moe_layers,
				  m->n_experts, HEAT_CELLS_MAX);
	t->bytes = ALIGN_UP(t->bytes, (uint64_t)MOE_RING_PAGE);
	if (r == 0 && !take_kept(t, handover, m)) {
		char name[48];

		r = make(t, m, err);
		if (r == 0)
			take_saved(h, t, m, saved);
		if (r == 0 && handover_keeps(handover))
			handover_put(handover, t->fd, "%s", kept_name(name, m->digest));
	}
	if (r < 0) {
		table_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

void heats_keep(struct handover *handover, const struct heats_table *t)
{
	char name[48];

	if (t && handover_keeps(handover))
		handover_put(handover, t->fd, "%s", kept_name(name, t->page->digest));
}

void heats_join(struct heats *h, struct handover *handover, struct entry *entry, const struct heats_saved *saved)
{
	const struct moe_manifest *m = entry->model->manifest;
	struct heats_table *t = *find(&h->first, m);
	struct moe_error err;

	if (!t && (t = unlinked(find(&h->parting, m))))
		heats_keep(handover, t);
	if (!t && table_new(&t, h, handover, m, saved, &err) < 0) {
		log_warning("%s: it is served without heat that lasts: %s", m->name, err.text);
		return;
	}
	if (t->users++ == 0) {
		t->next = h->first;
		h->first = t;
	}
	entry->lasting = t;
}

/* -- saving ------------------------------------------------------------------------------------------------------- */

/* Which of several saves has failed is not said: all count as unsaved then. */
static void saved(struct heats *h, int r, const struct moe_error *err)
{
	for (struct heats_table *t = h->first; t && r < 0; t = t->next)
		t->page->saved_steps = 0;
	if (r < 0 && !h->complained)
		event_log(EVENT_HEAT_UNSAVED, FACTS(.path = h->folder, .reason = err->text), "%s", err->text);
	h->complained = r < 0;
}

/* Those that nothing is waited for any more. */
static void free_parting(struct heats *h)
{
	while (h->parting && !h->save && !h->held)
		table_free(unlinked(&h->parting));
}

void heats_end(struct heats *h)
{
	struct moe_error err;
	int r;

	if (!h->save)
		return;
	r = heat_save_join(steal_ptr(h->save), &err);
	saved(h, r, &err);
	free_parting(h);
}

void heats_hold(struct heats *h)
{
	h->held = true;
}

void heats_release(struct heats *h)
{
	h->held = false;
	free_parting(h);
}

/* Waits for it, for want of a thread. */
static void save_now(struct heats *h, struct heats_table *t)
{
	struct heat_page *copy;
	struct moe_error err;
	int r;

	copy = malloc(heat_bytes(t->page->rows, t->page->experts));
	if (!copy)
		return;
	heats_end(h);
	heat_encode(copy, t->page);
	r = heat_file_write(h->folder, copy, &err);
	free(copy);
	saved(h, r, &err);
}

void heats_look(struct heats *h, uint64_t now)
{
	if (h->save && atomic_load(&h->save->done))
		heats_end(h);
	if (!h->folder || h->save || now - h->saved_ns < HEATS_SAVE_NS)
		return;
	for (struct heats_table *t = h->first; t; t = t->next) {
		if (t->page->steps - t->page->saved_steps < HEATS_SAVE_STEPS ||
		    heat_save_start(&h->save, h->folder, t->page, NULL) < 0)
			continue;
		h->saved_ns = now;
		t->page->saved_steps = t->page->steps;
		return;
	}
}

/* Behind the one in progress, which may be its own and fail. */
static void save_parting(struct heats *h, struct heats_table *t)
{
	if (!h->folder || (!h->save && t->page->steps == t->page->saved_steps))
		return;
	if (heat_save_start(&h->save, h->folder, t->page, h->save) == 0)
		t->page->saved_steps = t->page->steps;
	else
		save_now(h, t);
}

void heats_part(struct heats *h, struct handover *handover, struct entry *entry)
{
	struct heats_table *t = steal_ptr(entry->lasting), **at = &h->first;
	char name[48];

	if (!t || --t->users > 0)
		return;
	if (handover)
		handover_drop(handover, "%s", kept_name(name, t->page->digest));
	while (*at != t)
		at = &(*at)->next;
	unlinked(at);
	save_parting(h, t);
	t->next = h->parting;
	h->parting = t;
	free_parting(h);
}

/* The last one begun removes the same already. */
static bool removes(const struct heats *h, const struct heats_table *t)
{
	return h->save && h->save->removes &&
	       memcmp(h->save->copy->digest, t->page->digest, sizeof t->page->digest) == 0;
}

/* Behind the one in progress, or the heat would come back. */
static int remove_saved(struct heats *h, struct heats_table *t, struct moe_error *err)
{
	if (!h->folder || removes(h, t) || heat_remove_start(&h->save, h->folder, t->page, h->save) == 0)
		return 0;
	heats_end(h); /* waits for it, for want of a thread */
	return heat_file_remove(h->folder, t->page, err);
}

int heats_forget(struct heats *h, struct entry *entry, struct moe_error *err)
{
	struct heats_table *t = entry->lasting;
	int r;

	if (!t)
		return moe_error_set(err, -ENOENT, "model '%s' has no heat that lasts", entry->model->manifest->name);
	r = remove_saved(h, t, err);
	if (r == 0)
		heat_table_forget(t->page);
	return r;
}
