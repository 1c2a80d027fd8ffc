/* SPDX-License-Identifier: MIT */
/*
 * service-load - the models that a service has: those of the start, one after the other until it is ready, and
 * those that a peer asks for; one load at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/path.h"
#include "base/util.h"
#include "daemon/closer.h"
#include "daemon/estate.h"
#include "daemon/events.h"
#include "daemon/handover.h"
#include "daemon/peer-messages.h"
#include "daemon/service.h"

#define PROGRESS_NS 250000000u /* to a peer that shows a bar */
#define LOGGED_NS 5000000000u  /* to the log */

/* What of --memory-max the loaded models have left; 0: no limit. */
static int memory_left(const struct service *s, const char *path, uint64_t *ret, struct moe_error *err)
{
	const uint64_t used = registry_bytes(&s->registry), max = s->config->memory_max;

	if (max && used >= max)
		return moe_error_set(err, -ENOMEM,
				     "%s: models already take %llu of --memory-max (MemoryMax=) %llu bytes; unload one",
				     path, (unsigned long long)used, (unsigned long long)max);
	*ret = max ? max - used : 0;
	return 0;
}

/* On the load's thread. */
static void end_load(const struct resident *model, void *userdata)
{
	struct service *s = userdata;

	modpools_give(&s->modpools, model, &s->gift);
	heats_read(&s->saved, s->heats.folder, model->manifest);
}

int service_load(struct service *s, struct peer *peer, const char *path, const char *name, struct moe_error *err)
{
	struct store_params params = {
		.path = path,
		.name = settings_model_name(path, name),
		.pages = s->config->pages,
		.writable_clients = s->config->writable_weights,
		.pool_max = s->config->pool_max,
		.epoch = s->estate->next_epoch,
		.host = s->host,
	};
	const struct load_after after = {.run = end_load, .userdata = s};
	int r;

	if (s->load)
		return moe_error_set(err, -EBUSY, "%s: %s is being loaded; one at a time", path, s->load->path);
	r = registry_check_name(&s->registry, params.name, err);
	if (r == 0)
		r = memory_left(s, path, &params.memory_max, err);
	if (r < 0)
		return r;
	s->load_job = jobs_start(&s->jobs, JOB_LOAD, path);
	if (!s->load_job)
		return moe_error_sys(err, -ENOMEM, "%s: cannot start loading", path);
	host_read_again(s->host); /* pages may have been reserved since the start */
	heats_hold(&s->heats);
	r = load_start(&s->load, &params, &after, s->loop, err);
	if (r < 0) {
		heats_release(&s->heats);
		jobs_forget(&s->jobs, s->load_job);
		s->load_job = NULL;
		return r;
	}
	bus_note(s->bus);
	s->estate->next_epoch++;
	s->load_peer = peer;
	s->load_reported_ns = now_ns();
	event_log(EVENT_LOADING, FACTS(.path = path), "loading %s", path);
	s->manager.status_ns = s->manager.moved = 0;
	service_tell_load(s);
	return 0;
}

void service_report_load(struct service *s)
{
	const struct load *load = s->load;
	const uint64_t done = atomic_load(&load->done_bytes), total = atomic_load(&load->total_bytes);
	const uint64_t elapsed = atomic_load(&load->elapsed_ns), eta = load_eta_ns(load);

	service_tell_load(s);
	if (now_ns() - s->load_reported_ns < (s->load_peer ? PROGRESS_NS : LOGGED_NS) || total == 0)
		return;
	s->load_reported_ns = now_ns();
	if (s->load_peer)
		peer_send_progress(s->load_peer, done, total, elapsed, eta);
	else if (done == 0)
		log_info("%s: preparing memory for %.2f GB", load->path, (double)total / 1e9);
	else
		log_info("%s: %.0f %% of %.2f GB, %.2f GB/s, %.0f s to go", load->path,
			 100.0 * (double)done / (double)total, (double)total / 1e9,
			 elapsed ? (double)done / (double)elapsed : 0.0, (double)eta / 1e9);
}

static void say_ready(struct service *s)
{
	static const char word[] = "READY\n";

	s->ready = true;
	s->leaves = false;
	service_tell_ready(s);
	event_log(EVENT_READY, FACTS(.path = s->config->socket, .count = s->registry.n),
		  "ready: %u models, %u CPU threads (%s), socket %s", s->registry.n, pool_threads(s->pool),
		  isa_name(s->config->isa), s->config->socket);
	if (s->config->ready_fd >= 0) {
		if (write(s->config->ready_fd, word, sizeof word - 1) < 0)
			log_warning("--ready-fd %d: %s", s->config->ready_fd, strerror(errno));
		close_fd(s->config->ready_fd);
	}
}

static int refuse_path(const struct service *s, uint32_t i, int code, struct moe_error *err)
{
	char place[SETTINGS_PLACE];

	moe_error_sys(err, code, "%.300s: a folder with config.json and safetensors files, or a GGUF file, expected",
		      settings_model_place(place, &s->config->settings, i));
	load_say_who(code, err);
	return code;
}

/* A model of the start: -EEXIST where the daemon before has left it, whatever has become of its folder since; else 0
 * and *ret_path, which is the caller's, or why it cannot be found. */
static int find_model(const struct service *s, uint32_t i, char **ret_path)
{
	const char *given = s->config->models[i], *name = s->config->names[i];
	struct entry *left;
	int r = 0;

	if (*given == '/' && registry_by_path(&s->registry, given, settings_model_name(given, name)))
		return -EEXIST;
	*ret_path = path_real(given);
	if (*ret_path)
		return registry_by_path(&s->registry, *ret_path, settings_model_name(*ret_path, name)) ? -EEXIST : 0;
	r = -errno;
	if (s->leaves && ((name && *name) || strchr(given, '/')) &&
	    registry_find(&s->registry, settings_model_name(given, name), NULL, &left, NULL) == 0) {
		log_warning("%s: %s; the daemon before has left the model '%s', which goes on", given, strerror(-r),
			    settings_model_name(given, name));
		return -EEXIST;
	}
	return r;
}

/* Before anything is loaded: a clash of names would be seen when the first of them is there. */
int service_check_models(const struct service *s, struct moe_error *err)
{
	for (uint32_t i = 0; i < s->config->n_models; i++) {
		_cleanup_free_ char *path = NULL;
		const int r = find_model(s, i, &path);

		if (r < 0 && r != -EEXIST)
			return refuse_path(s, i, r, err);
	}
	return settings_check_models(&s->config->settings, "", err);
}

/* The models of the start, one after the other; READY after the last. */
int service_load_next(struct service *s, struct moe_error *err)
{
	const uint32_t i = s->models_next;
	_cleanup_free_ char *path = NULL;
	int r;

	if (i == s->config->n_models) {
		if (!s->ready)
			say_ready(s);
		return 0;
	}
	s->models_next++;
	r = find_model(s, i, &path);
	if (r == -EEXIST)
		return service_load_next(s, err); /* the daemon before has loaded it */
	if (r < 0)
		return refuse_path(s, i, r, err);
	return service_load(s, NULL, path, s->config->names[i], err);
}

void service_start_mover(struct service *s, struct entry *entry)
{
	const struct mover_params params = {
		.pool = s->pool, .host = s->host, .pages = s->config->pages, .max = s->config->replica_max};

	if (params.max)
		registry_start_mover(entry, &params);
}

static int start_tier(struct service *s, struct entry *entry, struct moe_error *err)
{
	int r;

	entry->books->policy = policy_index(s->config->tier_policy);
	r = registry_start_tier(entry, s->loop, err);

	if (r < 0)
		registry_remove(&s->registry, entry->model->manifest->name, NULL);
	else if (entry->tier)
		frames_pause(tier_frames(entry->tier), false);
	return r;
}

static void free_resident(void *model)
{
	resident_free(model);
}

void service_finish_load(struct service *s)
{
	struct load *load = s->load;
	struct peer *peer = s->load_peer;
	struct job *job = s->load_job;
	struct moe_error err;
	struct entry *entry = NULL;
	int r = load_code(load, &err);

	service_tell_load(s);
	s->load = NULL;
	s->load_peer = NULL;
	s->load_job = NULL;
	if (r == 0) {
		s->weight_bytes_read += load->result->read_bytes;
		r = registry_add(&s->registry, load->result, &entry, &err);
		if (r == 0)
			load->result = NULL;
	}
	if (r == 0)
		r = start_tier(s, entry, &err);
	if (r == 0)
		heats_join(&s->heats, s->handover, entry, &s->saved);
	heats_saved_free(&s->saved);
	heats_release(&s->heats);
	if (r == 0)
		service_start_mover(s, entry);
	modpools_accept(&s->modpools, &s->gift, load->name, r == 0);
	if (r == 0)
		service_keep_model(s, entry);
	if (r < 0)
		event_log(EVENT_LOAD_FAILED, FACTS(.path = load->path, .reason = err.text), "%s", err.text);
	if (peer && r < 0)
		peer_send_error(peer, r, err.text);
	else if (peer)
		peer_send_loaded(peer, entry->model->manifest, registry_model_bytes(entry->model),
				 entry->model->load_ns);
	if (peer)
		peer_asking(peer, false);
	jobs_end(&s->jobs, job, r, &err);
	bus_note(s->bus);
	if (load->result) /* cancelled when it was whole; its memory takes a tenth of a second a GiB */
		closer_free(free_resident, steal_ptr(load->result));
	load_free(load);
	if (s->ready)
		service_tell_status(s);
	if (!s->ready && r == 0) {
		r = service_load_next(s, &err);
		if (r < 0)
			event_log(EVENT_LOAD_FAILED, FACTS(.reason = err.text), "%s", err.text);
	}
	if (!s->ready && r < 0)
		loop_stop(s->loop, r);
}

void service_keep_model(struct service *s, struct entry *entry)
{
	const int r = handover_keeps(s->handover) ? estate_keep_model(s->handover, entry) : 0;
	const struct moe_manifest *m = entry->model->manifest;

	if (r < 0)
		log_warning("model %s %s: the keeper does not take it: %s", m->name,
			    modpools_has(&s->modpools, m->epoch) ? "lies with the kernel module only"
								 : "will not outlive this daemon",
			    strerror(-r));
}

bool service_outlives(const struct service *s, const struct entry *entry)
{
	return entry->kept || modpools_has(&s->modpools, entry->model->manifest->epoch);
}

int service_cancel_load(struct service *s, struct moe_error *err)
{
	if (!s->ready)
		return moe_error_set(err, -EBUSY,
				     "%s: is loaded because --model or Model= says so; to end it, end the daemon",
				     s->load->path);
	atomic_store(&s->load->cancelled, true);
	return 0;
}

void service_say_loading(const struct service *s, const char *name, struct moe_error *err)
{
	if (s->load && (*name ? strcmp(name, s->load->name) == 0 : s->registry.n == 0))
		moe_error_set(err, err->code,
			      "model '%s' is being loaded: attach when it is there (moectl status says how far it is)",
			      s->load->name);
}

int service_unload(struct service *s, const char *name, struct moe_error *err)
{
	struct entry *entry;
	int r;

	if (s->load && strcmp(name, s->load->name) == 0)
		return moe_error_set(
			err, -EBUSY,
			"model '%s' is being loaded: unload it when it is there (moectl status says when), "
			"or cancel its job on the bus",
			name);
	if (*name && registry_find(&s->registry, name, NULL, &entry, err) == 0 && entry->model->sessions == 0) {
		estate_drop_model(s->handover, entry);
		heats_part(&s->heats, s->handover, entry);
		modpools_release(&s->modpools, entry->model->manifest->epoch);
		s->weight_bytes_read += entry->tier ? tier_read_bytes(entry->tier) : 0;
	}
	bus_note(s->bus);
	drafts_restart(&s->drafts);
	r = registry_remove(&s->registry, name, err);
	if (r == 0)
		service_tell_status(s);
	return r;
}

int service_forget_heat(struct service *s, const char *model, struct moe_error *err)
{
	struct entry *entry;
	int r = registry_find(&s->registry, model, NULL, &entry, err);

	if (r < 0)
		return r;
	service_take_heat(s); /* or it would come after */
	r = heats_forget(&s->heats, entry, err);
	if (r == 0)
		event_log(EVENT_HEAT_FORGOTTEN, FACTS(.model = entry->model->manifest->name),
			  "model %s: its heat begins anew", entry->model->manifest->name);
	return r;
}

int service_set_policy(struct service *s, const char *model, const char *policy, struct moe_error *err)
{
	struct entry *entry;
	int r = registry_find(&s->registry, model, NULL, &entry, err);

	if (r == 0)
		r = registry_set_policy(entry, policy, err);
	if (r < 0)
		return r;
	event_log(EVENT_NEW_POLICY, FACTS(.model = entry->model->manifest->name, .policy = policy),
		  "model %s: policy %s from now on", entry->model->manifest->name, policy);
	bus_note(s->bus);
	return 0;
}
