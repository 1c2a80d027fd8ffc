/* SPDX-License-Identifier: MIT */
#include "daemon/replicas.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/store.h"

struct row {
	struct replica_table *table; /* NULL: no copies yet */
	struct replica_table *old;   /* held */
	int32_t *now;                /* [nodes][slots], the mover's */
};

/* What is being made, between begin and commit or abort. */
struct making {
	struct replica_table *table;
	int32_t *want;
};

struct replicas {
	const struct resident *model;
	uint32_t nodes, slots, per_node; /* per_node: of all rows, with those to spare */
	uint64_t slot_bytes, limit;
	pthread_mutex_t lock;
	struct row *rows;
	int32_t *now;
	uint32_t *users; /* [nodes][per_node]: tables that have it */
	uint8_t *files[MOE_POOLS_MAX];
	uint64_t switches, bytes, epoch;
	uint32_t old, used; /* used: slots of all nodes */
	uint32_t copies[MOE_POOLS_MAX];
	uint32_t next[MOE_POOLS_MAX]; /* of a node: where the last free slot was found */
	struct making making;
};

/* A slot has room for the largest record, but for one share. */
static uint64_t slot_bytes(const struct resident *model)
{
	return (model->manifest->n_pools - 1) * model->manifest->record_bytes;
}

uint32_t replicas_slots(const struct resident *model, uint64_t max, uint64_t page)
{
	const struct moe_manifest *m = model->manifest;
	uint64_t per_node, slots;

	if (m->n_pools < 2 || model->frames)
		return 0;
	per_node = max / m->n_pools;
	per_node -= per_node % page; /* files are of whole pages */
	slots = per_node / slot_bytes(model) / ((uint64_t)m->n_moe_layers + 1);
	return (uint32_t)MIN(slots, m->n_experts);
}

int replicas_new(struct replicas **ret, const struct resident *model, uint64_t max, uint64_t page,
		 struct moe_error *err)
{
	const struct moe_manifest *m = model->manifest;
	const uint32_t slots = replicas_slots(model, max, page);
	struct replicas *r;

	if (!slots)
		return moe_error_set(err, -ENOSPC,
				     "%s: no room for a copy of one expert in each of %u layers on %u nodes", m->name,
				     m->n_moe_layers, m->n_pools);
	r = calloc(1, sizeof *r);
	if (!r)
		return moe_error_set(err, -ENOMEM, "%s: no memory for a table of copies", m->name);
	pthread_mutex_init(&r->lock, NULL);
	r->model = model;
	r->nodes = m->n_pools;
	r->slots = slots;
	r->per_node = slots * (m->n_moe_layers + 1);
	r->slot_bytes = slot_bytes(model);
	r->limit = max;
	r->rows = calloc(m->n_moe_layers, sizeof *r->rows);
	r->now = calloc((size_t)m->n_moe_layers * r->nodes * slots, sizeof *r->now);
	r->users = calloc((size_t)r->nodes * r->per_node, sizeof *r->users);
	r->making.want = calloc((size_t)r->nodes * slots, sizeof *r->making.want);
	if (!r->rows || !r->now || !r->users || !r->making.want) {
		replicas_free(r);
		return moe_error_set(err, -ENOMEM, "%s: no memory for a table of copies", m->name);
	}
	for (uint32_t i = 0; i < m->n_moe_layers; i++)
		r->rows[i].now = r->now + (size_t)i * r->nodes * slots;
	memset(r->now, 0xff, (size_t)m->n_moe_layers * r->nodes * slots * sizeof *r->now);
	*ret = r;
	return 0;
}

struct replicas *replicas_free(struct replicas *r)
{
	if (!r)
		return NULL;
	assert(!r->making.table && r->old == 0);
	for (uint32_t i = 0; r->rows && i < r->model->manifest->n_moe_layers; i++) {
		assert(!r->rows[i].table || r->rows[i].table->holders == 0);
		free(r->rows[i].table);
	}
	pthread_mutex_destroy(&r->lock);
	free(r->rows);
	free(r->now);
	free(r->users);
	free(r->making.want);
	free(r);
	return NULL;
}

uint64_t replicas_file_bytes(const struct replicas *r)
{
	return r->per_node * r->slot_bytes;
}

void replicas_use(struct replicas *r, uint8_t *const *files, uint64_t bytes)
{
	assert(bytes <= r->limit);
	pthread_mutex_lock(&r->lock);
	memcpy(r->files, files, r->nodes * sizeof *files);
	r->bytes = bytes;
	pthread_mutex_unlock(&r->lock);
}

/* -- tables ------------------------------------------------------------------------------------------------------- */

static size_t cells(const struct replicas *r)
{
	return (size_t)r->model->manifest->n_experts * r->nodes;
}

static uint32_t *users_of(struct replicas *r, uint32_t node, const uint8_t *slot)
{
	return &r->users[(size_t)node * r->per_node + (uint64_t)(slot - r->files[node]) / r->slot_bytes];
}

/* Under the lock, as all below that change users. */
static void slot_use(struct replicas *r, uint32_t node, const uint8_t *slot)
{
	r->used += (*users_of(r, node, slot))++ == 0;
}

static void slot_drop(struct replicas *r, uint32_t node, const uint8_t *slot)
{
	r->used -= --*users_of(r, node, slot) == 0;
}

static void table_drop(struct replicas *r, struct replica_table *table)
{
	for (size_t i = 0; i < cells(r); i++)
		if (table->at[i])
			slot_drop(r, (uint32_t)(i % r->nodes), table->at[i]);
	free(table);
}

struct replica_table *replicas_hold(struct replicas *r, uint32_t row)
{
	struct replica_table *table;

	pthread_mutex_lock(&r->lock);
	table = r->rows[row].table;
	if (table)
		table->holders++;
	pthread_mutex_unlock(&r->lock);
	return table;
}

void replicas_release(struct replicas *r, struct replica_table *table)
{
	struct replica_table **at;

	if (!table)
		return;
	pthread_mutex_lock(&r->lock);
	assert(table->holders > 0);
	if (--table->holders == 0 && !table->current) {
		for (at = &r->rows[table->row].old; *at != table; at = &(*at)->next)
			continue;
		*at = table->next;
		r->old--;
		table_drop(r, table);
	}
	pthread_mutex_unlock(&r->lock);
}

const uint8_t *replicas_share(const struct replicas *r, const struct replica_table *table, uint32_t expert,
			      uint32_t node, uint32_t share)
{
	const uint64_t bytes = r->model->layouts[resident_layout(r->model, table->row)].record_bytes;

	return table->at[(size_t)expert * r->nodes + node] + bytes * (share - (share > node));
}

/* -- the mover ---------------------------------------------------------------------------------------------------- */

const int32_t *replicas_now(const struct replicas *r, uint32_t row)
{
	return r->rows[row].now;
}

static uint8_t *free_slot(struct replicas *r, uint32_t node)
{
	for (uint32_t i = 0; i < r->per_node; i++) {
		const uint32_t slot = r->next[node];

		r->next[node] = slot + 1 < r->per_node ? slot + 1 : 0;
		if (r->users[(size_t)node * r->per_node + slot] == 0)
			return r->files[node] + slot * r->slot_bytes;
	}
	return NULL;
}

/* A slot for each expert: the one that it has, or a new one, which is on the list. */
static bool fill_table(struct replicas *r, struct replica_table *table, const int32_t *want, struct replica_copy *list,
		       uint32_t *n)
{
	const struct replica_table *old = r->rows[table->row].table;

	for (uint32_t i = 0; i < r->nodes * r->slots; i++) {
		const uint32_t node = i / r->slots;
		const size_t cell = want[i] < 0 ? 0 : (size_t)want[i] * r->nodes + node;
		uint8_t *to;

		if (want[i] < 0 || table->at[cell])
			continue;
		if (old && old->at[cell]) {
			table->at[cell] = old->at[cell];
			slot_use(r, node, table->at[cell]);
			continue;
		}
		to = free_slot(r, node);
		if (!to)
			return false;
		table->at[cell] = to;
		slot_use(r, node, to);
		list[(*n)++] = (struct replica_copy){(uint32_t)want[i], node, i % r->slots, to};
	}
	return true;
}

int replicas_begin(struct replicas *r, uint32_t row, const int32_t *want, struct replica_copy *ret, uint32_t *ret_n)
{
	struct replica_table *table = calloc(1, sizeof *table + cells(r) * sizeof table->at[0]);
	bool good;

	assert(!r->making.table);
	if (!table)
		return -ENOMEM;
	table->row = row;
	*ret_n = 0;
	pthread_mutex_lock(&r->lock);
	table->epoch = (r->rows[row].table ? r->rows[row].table->epoch : 0) + 1;
	good = fill_table(r, table, want, ret, ret_n);
	if (good)
		r->making.table = table;
	else
		table_drop(r, table);
	pthread_mutex_unlock(&r->lock);
	if (good)
		memcpy(r->making.want, want, (size_t)r->nodes * r->slots * sizeof *want);
	return good ? 0 : -EAGAIN;
}

static uint32_t count(const int32_t *slots, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++)
		found += slots[i] >= 0;
	return found;
}

void replicas_commit(struct replicas *r)
{
	struct replica_table *table = steal_ptr(r->making.table), *before;
	struct row *row = &r->rows[table->row];
	uint32_t more[MOE_POOLS_MAX];

	for (uint32_t n = 0; n < r->nodes; n++) /* modulo 2^32 */
		more[n] = count(r->making.want + n * r->slots, r->slots) - count(row->now + n * r->slots, r->slots);
	memcpy(row->now, r->making.want, (size_t)r->nodes * r->slots * sizeof *row->now);
	pthread_mutex_lock(&r->lock);
	before = row->table;
	table->current = true;
	row->table = table;
	r->switches++;
	r->epoch = MAX(r->epoch, table->epoch);
	for (uint32_t n = 0; n < r->nodes; n++)
		r->copies[n] += more[n];
	if (before && before->holders) {
		before->current = false;
		before->next = row->old;
		row->old = before;
		r->old++;
	} else if (before) {
		table_drop(r, before);
	}
	pthread_mutex_unlock(&r->lock);
}

void replicas_abort(struct replicas *r)
{
	pthread_mutex_lock(&r->lock);
	table_drop(r, steal_ptr(r->making.table));
	pthread_mutex_unlock(&r->lock);
}

void replicas_level(struct replicas *r, struct replicas_level *ret)
{
	*ret = (struct replicas_level){.nodes = r->nodes, .slots = r->slots, .limit = r->limit};
	pthread_mutex_lock(&r->lock);
	ret->bytes = r->bytes;
	ret->switches = r->switches;
	ret->old = r->old;
	ret->epoch = r->epoch;
	ret->used_slots = r->used;
	ret->free_slots = r->bytes ? r->nodes * r->per_node - r->used : 0;
	memcpy(ret->copies, r->copies, sizeof ret->copies);
	pthread_mutex_unlock(&r->lock);
}
