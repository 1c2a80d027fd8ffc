/* SPDX-License-Identifier: MIT */
/*
 * The objects: /org/moeexpertd is the manager, below it are model/NAME, session/NUMBER and job/NUMBER.
 *
 * An object is there while what it stands for is there: nothing is kept of it but the view that was read last.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/util.h"
#include "daemon/bus-internal.h"
#include "daemon/ringsrv.h"
#include "daemon/tier.h"
#include "daemon/estate.h"
#include "daemon/handover.h"

#define MODEL_PREFIX BUS_ROOT "/model"
#define SESSION_PREFIX BUS_ROOT "/session"
#define JOB_PREFIX BUS_ROOT "/job"

static const char *const phase_names[] = {"none", "prefill", "decode"};
static const char *const kind_names[] = {
	[JOB_LOAD] = "load",         [JOB_UNLOAD] = "unload", [JOB_DRAIN] = "drain",
	[JOB_POLICY] = "set-policy", [JOB_TRACE] = "trace",
};

/* -- paths -------------------------------------------------------------------------------------------------------- */

int bus_model_path(char to[BUS_PATH_MAX], const char *name)
{
	_cleanup_free_ char *path = NULL;
	int r = sd_bus_path_encode(MODEL_PREFIX, name, &path);

	if (r >= 0)
		snprintf(to, BUS_PATH_MAX, "%s", path);
	return MIN(r, 0);
}

void bus_session_path(char to[BUS_PATH_MAX], uint64_t id)
{
	snprintf(to, BUS_PATH_MAX, "%s/%llu", SESSION_PREFIX, (unsigned long long)id);
}

void bus_job_path(char to[BUS_PATH_MAX], uint32_t id)
{
	snprintf(to, BUS_PATH_MAX, "%s/%u", JOB_PREFIX, id);
}

/* As the two above write it, and no other way. */
static bool number_of(const char *path, const char *prefix, uint64_t *ret)
{
	const size_t stem = strlen(prefix);
	char again[32];

	if (strncmp(path, prefix, stem) != 0 || path[stem] != '/')
		return false;
	*ret = strtoull(path + stem + 1, NULL, 10);
	snprintf(again, sizeof again, "%llu", (unsigned long long)*ret);
	return strcmp(again, path + stem + 1) == 0;
}

struct entry *bus_find_model(const struct bus *b, const char *path)
{
	_cleanup_free_ char *name = NULL;
	struct entry *e = b->service->registry.head;

	if (sd_bus_path_decode(path, MODEL_PREFIX, &name) <= 0)
		return NULL;
	while (e && strcmp(e->model->manifest->name, name) != 0)
		e = e->next;
	return e;
}

struct session *bus_find_session(const struct bus *b, const char *path)
{
	struct session *x = b->service->sessions;
	uint64_t id;

	if (!number_of(path, SESSION_PREFIX, &id))
		return NULL;
	while (x && (x->dead || x->id != id))
		x = x->next;
	return x;
}

struct job *bus_find_job(const struct bus *b, const char *path)
{
	struct job *job = b->service->jobs.head;
	uint64_t id;

	if (!number_of(path, JOB_PREFIX, &id))
		return NULL;
	while (job && job->id != id)
		job = job->next;
	return job;
}

/* -- views -------------------------------------------------------------------------------------------------------- */

static const char *state_of(const struct service *s)
{
	return s->draining ? "draining" : s->ready ? "ready" : "loading";
}

void bus_count(const struct bus *b, struct bus_counts *ret)
{
	const struct service *s = b->service;

	*ret = (struct bus_counts){.models = s->registry.n,
				   .jobs = s->jobs.n,
				   .bytes = registry_bytes(&s->registry),
				   .state = state_of(s)};
	for (const struct session *x = s->sessions; x; x = x->next)
		ret->sessions += !x->dead;
}

static int find_manager(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
			sd_bus_error *ret_error)
{
	struct bus *b = userdata;
	const struct service *s = b->service;
	struct bus_counts counts;

	if (strcmp(path, BUS_ROOT) != 0)
		return 0;
	bus_count(b, &counts);
	b->manager = (struct manager_view){
		.version = MOE_VERSION,
		.state = counts.state,
		.socket = s->config->socket,
		.isa = isa_name(s->config->isa),
		.pid = (uint32_t)getpid(),
		.threads = pool_threads(s->pool),
		.models = counts.models,
		.sessions = counts.sessions,
		.jobs = counts.jobs,
		.restarts = s->estate->restarts,
		.bytes = counts.bytes,
		.memory_max = s->config->memory_max,
		.pool_max = s->config->pool_max,
		.fill_budget = sched_fill_budget(s->sched),
		.weight_bytes_read = s->weight_bytes_read,
		.draining = s->draining,
		.kept = handover_keeps(s->handover),
	};
	*ret_found = b;
	return 1;
}

/* Of a model that is all there none. */
static const char *policy_of(const struct entry *e)
{
	return e->tier ? frames_policy(tier_frames(e->tier))->name : "";
}

static int find_model(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
		      sd_bus_error *ret_error)
{
	struct bus *b = userdata;
	struct model_view *v = &b->model;
	const struct entry *e = bus_find_model(b, path);
	const struct moe_manifest *m = e ? e->model->manifest : NULL;

	if (!e)
		return 0;
	*v = (struct model_view){
		.family = e->model->family,
		.layers = m->n_layers,
		.moe_layers = m->n_moe_layers,
		.experts = m->n_experts,
		.topk = m->topk,
		.hidden = m->hidden,
		.inter = m->inter,
		.frames = e->model->frames,
		.sessions = e->model->sessions,
		.leases = e->model->leases,
		.bytes = registry_model_bytes(e->model),
		.load_usec = e->model->load_ns / 1000,
		.tiered = e->tier != NULL,
		.policy = policy_of(e),
	};
	for (int i = 0; i < MOE_DIGEST_BYTES; i++)
		snprintf(v->digest_text + 2 * i, 3, "%02x", m->digest[i]);
	v->digest = v->digest_text;
	v->name = bus_text(v->name_text, sizeof v->name_text, m->name);
	v->path = bus_text(v->path_text, sizeof v->path_text, e->model->path);
	*ret_found = b;
	return 1;
}

static int find_session(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
			sd_bus_error *ret_error)
{
	struct bus *b = userdata;
	struct session_view *v = &b->session;
	const struct session *x = bus_find_session(b, path);
	int r;

	if (!x)
		return 0;
	*v = (struct session_view){
		.phase = phase_names[x->phase],
		.pid = (uint32_t)x->pid,
		.uid = x->uid,
		.tp_rank = x->attach.tp_rank,
		.tp_size = x->attach.tp_size,
		.dp_rank = x->attach.dp_rank,
		.ep_rank = x->attach.ep_rank,
		.in_flight = ringsrv_in_flight(x),
		.leases = x->leases_held,
		.id = x->id,
		.group = x->attach.group,
		.device = x->attach.device,
		.step = x->step,
		.data_bytes = x->arenas[MOE_ARENA_DATA].bytes,
		.slot_bytes = x->device ? x->device_bytes : x->arenas[MOE_ARENA_SLOTS].bytes,
		.charged_bytes = x->charge.held[ACCOUNT_BYTES],
		.failed = x->failed,
		.cancelled = x->cancelled,
	};
	r = bus_model_path(v->model_text, x->entry->model->manifest->name);
	v->model = v->model_text;
	v->model_name = bus_text(v->name_text, sizeof v->name_text, x->entry->model->manifest->name);
	*ret_found = b;
	return r < 0 ? r : 1;
}

const char *bus_job_kind(const struct job *job)
{
	return kind_names[job->kind];
}

const char *bus_job_result(const struct job *job)
{
	if (!job->ended)
		return "";
	return job->code == 0 ? "done" : job->code == -ECANCELED ? "canceled" : "failed";
}

double bus_job_progress(const struct bus *b, const struct job *job)
{
	const struct service *s = b->service;
	uint64_t total;

	if (job->ended)
		return job->code == 0;
	if (job == s->trace_job && s->trace)
		return trace_progress(s->trace);
	if (job != s->load_job || !s->load)
		return 0;
	total = atomic_load(&s->load->total_bytes);
	return total ? (double)atomic_load(&s->load->done_bytes) / (double)total : 0;
}

static int find_job(sd_bus *link, const char *path, const char *interface, void *userdata, void **ret_found,
		    sd_bus_error *ret_error)
{
	struct bus *b = userdata;
	struct job_view *v = &b->job;
	const struct job *job = bus_find_job(b, path);

	if (!job)
		return 0;
	*v = (struct job_view){
		.id = job->id,
		.kind = bus_job_kind(job),
		.state = job->ended ? "ended" : "running",
		.result = bus_job_result(job),
		.error = job->code < 0 ? bus_error_name(job->code, job->kind == JOB_LOAD) : "",
		.progress = bus_job_progress(b, job),
	};
	v->target = bus_text(v->target_text, sizeof v->target_text, job->target);
	v->message = bus_text(v->message_text, sizeof v->message_text, job->error.text);
	*ret_found = b;
	return 1;
}

/* -- tables ------------------------------------------------------------------------------------------------------- */

#define CONST SD_BUS_VTABLE_PROPERTY_CONST
#define EMITS SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE
#define OPEN SD_BUS_VTABLE_UNPRIVILEGED /* libsystemd would ask the bus who calls, and wait: bus-caller.c does not */
#define MANAGER(member) offsetof(struct bus, manager.member)
#define MODEL(member) offsetof(struct bus, model.member)
#define SESSION(member) offsetof(struct bus, session.member)
#define JOB(member) offsetof(struct bus, job.member)

static const sd_bus_vtable manager_table[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_PROPERTY("Version", "s", NULL, MANAGER(version), CONST),
	SD_BUS_PROPERTY("State", "s", NULL, MANAGER(state), EMITS),
	SD_BUS_PROPERTY("Draining", "b", NULL, MANAGER(draining), EMITS),
	SD_BUS_PROPERTY("PID", "u", NULL, MANAGER(pid), CONST),
	SD_BUS_PROPERTY("Socket", "s", NULL, MANAGER(socket), CONST),
	SD_BUS_PROPERTY("Threads", "u", NULL, MANAGER(threads), CONST),
	SD_BUS_PROPERTY("ISA", "s", NULL, MANAGER(isa), CONST),
	SD_BUS_PROPERTY("NModels", "u", NULL, MANAGER(models), EMITS),
	SD_BUS_PROPERTY("NSessions", "u", NULL, MANAGER(sessions), EMITS),
	SD_BUS_PROPERTY("NJobs", "u", NULL, MANAGER(jobs), EMITS),
	SD_BUS_PROPERTY("Bytes", "t", NULL, MANAGER(bytes), EMITS),
	SD_BUS_PROPERTY("WeightBytesRead", "t", NULL, MANAGER(weight_bytes_read), 0),
	SD_BUS_PROPERTY("MemoryMax", "t", NULL, MANAGER(memory_max), 0),
	SD_BUS_PROPERTY("PoolMax", "t", NULL, MANAGER(pool_max), 0),
	SD_BUS_PROPERTY("FillBudget", "t", NULL, MANAGER(fill_budget), 0),
	SD_BUS_PROPERTY("Restarts", "u", NULL, MANAGER(restarts), CONST),
	SD_BUS_PROPERTY("Kept", "b", NULL, MANAGER(kept), CONST),
	SD_BUS_METHOD_WITH_ARGS("LoadModel", SD_BUS_ARGS("s", path, "a{sv}", options), SD_BUS_RESULT("o", job),
				bus_on_load_model, OPEN),
	SD_BUS_METHOD_WITH_ARGS("UnloadModel", SD_BUS_ARGS("s", name), SD_BUS_RESULT("o", job), bus_on_unload_model,
				OPEN),
	SD_BUS_METHOD_WITH_ARGS("SetPolicy", SD_BUS_ARGS("s", model, "s", policy), SD_BUS_RESULT("o", job),
				bus_on_set_policy, OPEN),
	SD_BUS_METHOD_WITH_ARGS("Drain", SD_BUS_NO_ARGS, SD_BUS_RESULT("o", job), bus_on_drain, OPEN),
	SD_BUS_METHOD_WITH_ARGS("Resume", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT, bus_on_resume, OPEN),
	SD_BUS_METHOD_WITH_ARGS("ListModels", SD_BUS_NO_ARGS, SD_BUS_RESULT("a(sstuo)", models), bus_on_list_models,
				OPEN),
	SD_BUS_METHOD_WITH_ARGS("ListSessions", SD_BUS_NO_ARGS, SD_BUS_RESULT("a(tuuso)", sessions),
				bus_on_list_sessions, OPEN),
	SD_BUS_METHOD_WITH_ARGS("ListJobs", SD_BUS_NO_ARGS, SD_BUS_RESULT("a(ussdo)", jobs), bus_on_list_jobs, OPEN),
	SD_BUS_METHOD_WITH_ARGS("GetModel", SD_BUS_ARGS("s", name), SD_BUS_RESULT("o", model), bus_on_get_model, OPEN),
	SD_BUS_METHOD_WITH_ARGS("GetStatus", SD_BUS_NO_ARGS, SD_BUS_RESULT("s", json), bus_on_get_status, OPEN),
	SD_BUS_METHOD_WITH_ARGS("GetStats", SD_BUS_NO_ARGS, SD_BUS_RESULT("s", json), bus_on_get_stats, OPEN),
	SD_BUS_SIGNAL_WITH_ARGS("JobNew", SD_BUS_ARGS("u", id, "o", job), 0),
	SD_BUS_SIGNAL_WITH_ARGS("JobRemoved", SD_BUS_ARGS("u", id, "o", job, "s", result, "s", error, "s", message), 0),
	SD_BUS_VTABLE_END,
};

static const sd_bus_vtable model_table[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_PROPERTY("Name", "s", NULL, MODEL(name), CONST),
	SD_BUS_PROPERTY("Digest", "s", NULL, MODEL(digest), CONST),
	SD_BUS_PROPERTY("Path", "s", NULL, MODEL(path), CONST),
	SD_BUS_PROPERTY("Family", "s", NULL, MODEL(family), CONST),
	SD_BUS_PROPERTY("Layers", "u", NULL, MODEL(layers), CONST),
	SD_BUS_PROPERTY("MoELayers", "u", NULL, MODEL(moe_layers), CONST),
	SD_BUS_PROPERTY("Experts", "u", NULL, MODEL(experts), CONST),
	SD_BUS_PROPERTY("TopK", "u", NULL, MODEL(topk), CONST),
	SD_BUS_PROPERTY("Hidden", "u", NULL, MODEL(hidden), CONST),
	SD_BUS_PROPERTY("Intermediate", "u", NULL, MODEL(inter), CONST),
	SD_BUS_PROPERTY("Bytes", "t", NULL, MODEL(bytes), CONST),
	SD_BUS_PROPERTY("LoadUSec", "t", NULL, MODEL(load_usec), CONST),
	SD_BUS_PROPERTY("Tiered", "b", NULL, MODEL(tiered), CONST),
	SD_BUS_PROPERTY("Frames", "u", NULL, MODEL(frames), CONST),
	SD_BUS_PROPERTY("Policy", "s", NULL, MODEL(policy), EMITS),
	SD_BUS_PROPERTY("Sessions", "u", NULL, MODEL(sessions), EMITS),
	SD_BUS_PROPERTY("Leases", "u", NULL, MODEL(leases), 0),
	SD_BUS_METHOD_WITH_ARGS("Unload", SD_BUS_NO_ARGS, SD_BUS_RESULT("o", job), bus_on_model_unload, OPEN),
	SD_BUS_VTABLE_END,
};

static const sd_bus_vtable session_table[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_PROPERTY("Id", "t", NULL, SESSION(id), CONST),
	SD_BUS_PROPERTY("PID", "u", NULL, SESSION(pid), CONST),
	SD_BUS_PROPERTY("UID", "u", NULL, SESSION(uid), CONST),
	SD_BUS_PROPERTY("Model", "o", NULL, SESSION(model), CONST),
	SD_BUS_PROPERTY("ModelName", "s", NULL, SESSION(model_name), CONST),
	SD_BUS_PROPERTY("TPRank", "u", NULL, SESSION(tp_rank), CONST),
	SD_BUS_PROPERTY("TPSize", "u", NULL, SESSION(tp_size), CONST),
	SD_BUS_PROPERTY("DPRank", "u", NULL, SESSION(dp_rank), CONST),
	SD_BUS_PROPERTY("EPRank", "u", NULL, SESSION(ep_rank), CONST),
	SD_BUS_PROPERTY("Group", "t", NULL, SESSION(group), CONST),
	SD_BUS_PROPERTY("Device", "t", NULL, SESSION(device), CONST),
	SD_BUS_PROPERTY("Phase", "s", NULL, SESSION(phase), 0),
	SD_BUS_PROPERTY("Step", "t", NULL, SESSION(step), 0),
	SD_BUS_PROPERTY("InFlight", "u", NULL, SESSION(in_flight), 0),
	SD_BUS_PROPERTY("Leases", "u", NULL, SESSION(leases), 0),
	SD_BUS_PROPERTY("DataBytes", "t", NULL, SESSION(data_bytes), 0),
	SD_BUS_PROPERTY("SlotBytes", "t", NULL, SESSION(slot_bytes), 0),
	SD_BUS_PROPERTY("ChargedBytes", "t", NULL, SESSION(charged_bytes), 0),
	SD_BUS_PROPERTY("Failed", "t", NULL, SESSION(failed), 0),
	SD_BUS_PROPERTY("Cancelled", "t", NULL, SESSION(cancelled), 0),
	SD_BUS_VTABLE_END,
};

static const sd_bus_vtable job_table[] = {
	SD_BUS_VTABLE_START(0),
	SD_BUS_PROPERTY("Id", "u", NULL, JOB(id), CONST),
	SD_BUS_PROPERTY("Kind", "s", NULL, JOB(kind), CONST),
	SD_BUS_PROPERTY("Target", "s", NULL, JOB(target), CONST),
	SD_BUS_PROPERTY("State", "s", NULL, JOB(state), EMITS),
	SD_BUS_PROPERTY("Progress", "d", NULL, JOB(progress), EMITS),
	SD_BUS_PROPERTY("Result", "s", NULL, JOB(result), EMITS),
	SD_BUS_PROPERTY("Error", "s", NULL, JOB(error), EMITS),
	SD_BUS_PROPERTY("Message", "s", NULL, JOB(message), EMITS),
	SD_BUS_METHOD_WITH_ARGS("Cancel", SD_BUS_NO_ARGS, SD_BUS_NO_RESULT, bus_on_job_cancel, OPEN),
	SD_BUS_VTABLE_END,
};

const char *bus_interface(enum bus_kind kind)
{
	return kind == BUS_KIND_MODEL ? BUS_MODEL : kind == BUS_KIND_SESSION ? BUS_SESSION : BUS_JOB;
}

/* -- all of them -------------------------------------------------------------------------------------------------- */

int bus_order(const void *a, const void *b)
{
	const struct bus_object *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return (x->key > y->key) - (x->key < y->key);
}

/* Sessions are at most thousands, policies a few. */
static uint32_t model_value(const struct entry *e)
{
	return e->model->sessions | (e->tier ? policy_index(frames_policy(tier_frames(e->tier))) << 24 : 0);
}

int bus_list_objects(const struct bus *b, struct bus_object **ret, uint32_t *ret_n)
{
	const struct service *s = b->service;
	struct bus_counts counts;
	struct bus_object *o;
	uint32_t n = 0;

	bus_count(b, &counts);
	o = calloc((size_t)counts.models + counts.sessions + counts.jobs + 1, sizeof *o);
	if (!o)
		return -ENOMEM;
	for (const struct entry *e = s->registry.head; e; e = e->next) {
		o[n] = (struct bus_object){BUS_KIND_MODEL, e->model->manifest->epoch, model_value(e), ""};
		if (bus_model_path(o[n].path, e->model->manifest->name) < 0) {
			free(o);
			return -ENOMEM;
		}
		n++;
	}
	for (const struct session *x = s->sessions; x; x = x->next)
		if (!x->dead) {
			o[n] = (struct bus_object){BUS_KIND_SESSION, x->id, 0, ""};
			bus_session_path(o[n++].path, x->id);
		}
	for (const struct job *job = s->jobs.head; job; job = job->next) {
		o[n] = (struct bus_object){BUS_KIND_JOB, job->id, (uint32_t)(bus_job_progress(b, job) * 1000), ""};
		bus_job_path(o[n++].path, job->id);
	}
	qsort(o, n, sizeof *o, bus_order);
	*ret = o;
	*ret_n = n;
	return 0;
}

static int enumerate(sd_bus *link, const char *prefix, void *userdata, char ***ret_paths, sd_bus_error *ret_error)
{
	_cleanup_free_ struct bus_object *objects = NULL;
	uint32_t n, i = 0;
	char **paths;
	int r = bus_list_objects(userdata, &objects, &n);

	if (r < 0)
		return r;
	paths = calloc((size_t)n + 1, sizeof *paths);
	while (paths && i < n && (paths[i] = strdup(objects[i].path)))
		i++;
	if (paths && i == n) {
		*ret_paths = paths;
		return 0;
	}
	while (paths && i > 0)
		free(paths[--i]);
	free(paths);
	return -ENOMEM;
}

/* Where libsystemd cannot make the nodes of a path it forgets to take back those above, and aborts when the link is
 * freed (sd-bus.c, bus_free): they are taken back when it has made them all. */
static int add_first(struct bus *b)
{
	int r = sd_bus_add_object_manager(b->link, NULL, BUS_ROOT);

	if (r == -ENOMEM)
		r = sd_bus_add_object_manager(b->link, NULL, BUS_ROOT);
	b->unfreeable = r == -ENOMEM;
	return r;
}

int bus_add_objects(struct bus *b)
{
	const struct {
		const char *interface;
		const sd_bus_vtable *table;
		sd_bus_object_find_t find;
	} rooms[] = {
		{BUS_MANAGER, manager_table, find_manager},
		{BUS_MODEL, model_table, find_model},
		{BUS_SESSION, session_table, find_session},
		{BUS_JOB, job_table, find_job},
	};
	int r = add_first(b);

	for (size_t i = 0; i < ARRAY_LEN(rooms) && r >= 0; i++)
		r = sd_bus_add_fallback_vtable(b->link, NULL, BUS_ROOT, rooms[i].interface, rooms[i].table,
					       rooms[i].find, b);
	if (r >= 0)
		r = bus_add_figures(b);
	return r < 0 ? r : sd_bus_add_node_enumerator(b->link, NULL, BUS_ROOT, enumerate, b);
}
