/* SPDX-License-Identifier: MIT */
/*
 * What the objects do when they are called. Who only asks is answered at once; who changes something is answered when
 * it is known that he may (bus-caller.c). What takes time is a job, whose path is the answer.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "daemon/bus-internal.h"
#include "daemon/documents.h"
#include "daemon/events.h"

#define MODELS_ACTION BUS_NAME ".manage-models"
#define POLICIES_ACTION BUS_NAME ".manage-policies"
#define SESSIONS_ACTION BUS_NAME ".manage-sessions"
#define TRACES_ACTION BUS_NAME ".record-traces"

/* What was asked for has begun: who cannot be told so must not hear that it failed. */
static int answer_job(struct bus *b, sd_bus_message *call, const struct job *job)
{
	char path[BUS_PATH_MAX];

	bus_job_path(path, job->id);
	return bus_gave(b, sd_bus_reply_method_return(call, "o", path));
}

/* -- models ------------------------------------------------------------------------------------------------------- */

/* a{sv}: "name" s. */
static int read_options(sd_bus_message *m, const char **ret_name, struct moe_error *err)
{
	const char *key;
	int r = sd_bus_message_enter_container(m, 'a', "{sv}");

	*ret_name = NULL;
	while (r >= 0 && (r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
		r = sd_bus_message_read(m, "s", &key);
		if (r >= 0 && strcmp(key, "name") != 0)
			return moe_error_set(err, -EINVAL, "LoadModel: option '%.100s' found, name expected", key);
		if (r >= 0 && sd_bus_message_read(m, "v", "s", ret_name) < 0)
			return moe_error_set(err, -EINVAL, "LoadModel: option name: a string expected");
		if (r >= 0)
			r = sd_bus_message_exit_container(m);
	}
	return r < 0 ? moe_error_sys(err, r, "LoadModel") : 0;
}

static int load_model(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	struct moe_error err = {0};
	const char *path, *name;
	char folder[PATH_MAX];
	size_t length;
	int r = sd_bus_message_read(call, "s", &path);

	if (r < 0)
		return r;
	r = read_options(call, &name, &err);
	length = strlen(path);
	while (length > 1 && path[length - 1] == '/')
		length--;
	if (r == 0 && (path[0] != '/' || length == 1 || length >= sizeof folder))
		r = moe_error_set(&err, -EINVAL,
				  "LoadModel: path '%.200s': the absolute path of a folder or file "
				  "expected, of at most %d bytes",
				  path, PATH_MAX - 1);
	if (r == 0) {
		snprintf(folder, sizeof folder, "%.*s", (int)length, path);
		r = service_load(b->service, NULL, folder, name, &err);
	}
	return r < 0 ? bus_error(ret_error, r, &err) : answer_job(b, call, b->service->load_job);
}

int bus_on_load_model(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, MODELS_ACTION, load_model, ret_error);
}

static int unload(struct bus *b, sd_bus_message *call, const char *name, sd_bus_error *ret_error)
{
	struct job *job = jobs_start(&b->service->jobs, JOB_UNLOAD, name);
	struct moe_error err = {0};
	int r;

	if (!job)
		return -ENOMEM;
	r = service_unload(b->service, name, &err);
	if (r < 0) {
		jobs_forget(&b->service->jobs, job);
		return bus_error(ret_error, r, &err);
	}
	event_log(EVENT_UNLOADED, FACTS(.model = job->target), "model %s unloaded", job->target);
	r = answer_job(b, call, job);
	jobs_end(&b->service->jobs, job, 0, NULL);
	return r;
}

static int unload_model(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	const char *name;
	int r = sd_bus_message_read(call, "s", &name);

	return r < 0 ? r : unload(b, call, name, ret_error);
}

int bus_on_unload_model(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, MODELS_ACTION, unload_model, ret_error);
}

static int model_unload(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	const struct entry *e = bus_find_model(b, sd_bus_message_get_path(call));
	char name[MOE_NAME_BYTES];
	struct moe_error err;

	if (!e) {
		moe_error_set(&err, -ENOENT, "%.200s: the model has been unloaded", sd_bus_message_get_path(call));
		return bus_error(ret_error, -ENOENT, &err);
	}
	snprintf(name, sizeof name, "%s", e->model->manifest->name); /* the entry goes before its name is needed last */
	return unload(b, call, name, ret_error);
}

int bus_on_model_unload(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, MODELS_ACTION, model_unload, ret_error);
}

static int set_policy(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	const char *model, *policy;
	struct moe_error err;
	struct job *job;
	int r = sd_bus_message_read(call, "ss", &model, &policy);

	if (r < 0)
		return r;
	job = jobs_start(&b->service->jobs, JOB_POLICY, model);
	if (!job)
		return -ENOMEM;
	r = service_set_policy(b->service, model, policy, &err);
	if (r < 0) {
		jobs_forget(&b->service->jobs, job);
		return bus_error(ret_error, r, &err);
	}
	r = answer_job(b, call, job);
	jobs_end(&b->service->jobs, job, 0, NULL);
	return r;
}

int bus_on_set_policy(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, POLICIES_ACTION, set_policy, ret_error);
}

static int answer_path(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	char path[BUS_PATH_MAX];
	struct moe_error err;
	struct entry *e;
	const char *name;
	int r = sd_bus_message_read(call, "s", &name);

	if (r < 0)
		return r;
	r = registry_find(&b->service->registry, name, NULL, &e, &err);
	if (r < 0)
		return bus_error(ret_error, r, &err);
	r = bus_model_path(path, e->model->manifest->name);
	return r < 0 ? r : sd_bus_reply_method_return(call, "o", path);
}

int bus_on_get_model(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	const int r = answer_path(userdata, m, ret_error);

	return r < 0 ? bus_refuse(userdata, m, r, ret_error) : r;
}

/* -- sessions ----------------------------------------------------------------------------------------------------- */

static int drain(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	struct moe_error err;
	struct job *job;
	int r = service_drain(b->service, &job, &err);

	return r < 0 ? bus_error(ret_error, r, &err) : answer_job(b, call, job);
}

int bus_on_drain(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, SESSIONS_ACTION, drain, ret_error);
}

static int resume(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	service_resume(b->service);
	return sd_bus_reply_method_return(call, NULL);
}

int bus_on_resume(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_ask(userdata, m, SESSIONS_ACTION, resume, ret_error);
}

/* -- jobs --------------------------------------------------------------------------------------------------------- */

static int has_ended(sd_bus_message *call, sd_bus_error *ret_error)
{
	struct moe_error err;

	return bus_error(ret_error,
			 moe_error_set(&err, -ESRCH, "%.200s: the job has ended", sd_bus_message_get_path(call)), &err);
}

static int cancel(struct bus *b, sd_bus_message *call, sd_bus_error *ret_error)
{
	const struct job *job = bus_find_job(b, sd_bus_message_get_path(call));
	struct moe_error err;
	int r = 0;

	if (!job || job->ended)
		return has_ended(call, ret_error);
	if (job->kind == JOB_LOAD)
		r = service_cancel_load(b->service, &err);
	else if (job->kind == JOB_TRACE)
		r = service_stop_trace(b->service, &err);
	else
		service_resume(b->service);
	return r < 0 ? bus_error(ret_error, r, &err) : sd_bus_reply_method_return(call, NULL);
}

int bus_on_job_cancel(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	const struct job *job = bus_find_job(userdata, sd_bus_message_get_path(m));
	const char *action = MODELS_ACTION;

	if (!job) /* another one may have its number by the time that polkit has answered */
		return has_ended(m, ret_error);
	if (job->kind == JOB_DRAIN)
		action = SESSIONS_ACTION;
	if (job->kind == JOB_TRACE)
		action = TRACES_ACTION;
	return bus_ask(userdata, m, action, cancel, ret_error);
}

/* -- lists and documents ------------------------------------------------------------------------------------------ */

typedef int (*append_t)(sd_bus_message *reply, const struct bus *b);

/* An array of structures, that `append` fills. */
static int answer_list(struct bus *b, sd_bus_message *call, const char *type, append_t append, sd_bus_error *ret_error)
{
	_cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
	int r = sd_bus_message_new_method_return(call, &reply);

	if (r >= 0)
		r = sd_bus_message_open_container(reply, 'a', type);
	if (r >= 0)
		r = append(reply, b);
	if (r >= 0)
		r = sd_bus_message_close_container(reply);
	if (r >= 0)
		r = sd_bus_send(b->link, reply, NULL);
	return r < 0 ? bus_refuse(b, call, r, ret_error) : r;
}

static int append_models(sd_bus_message *reply, const struct bus *b)
{
	char path[BUS_PATH_MAX], name[MOE_NAME_BYTES], folder[PATH_MAX];
	int r = 0;

	for (const struct entry *e = b->service->registry.head; e && r >= 0; e = e->next) {
		r = bus_model_path(path, e->model->manifest->name);
		if (r >= 0)
			r = sd_bus_message_append(reply, "(sstuo)",
						  bus_text(name, sizeof name, e->model->manifest->name),
						  bus_text(folder, sizeof folder, e->model->path),
						  registry_model_bytes(e->model), e->model->sessions, path);
	}
	return r;
}

static int append_sessions(sd_bus_message *reply, const struct bus *b)
{
	char path[BUS_PATH_MAX], name[MOE_NAME_BYTES];
	int r = 0;

	for (const struct session *x = b->service->sessions; x && r >= 0; x = x->next) {
		if (x->dead)
			continue;
		bus_session_path(path, x->id);
		r = sd_bus_message_append(reply, "(tuuso)", x->id, (uint32_t)x->pid, (uint32_t)x->uid,
					  bus_text(name, sizeof name, x->entry->model->manifest->name), path);
	}
	return r;
}

static int append_jobs(sd_bus_message *reply, const struct bus *b)
{
	char path[BUS_PATH_MAX], target[PATH_MAX];
	int r = 0;

	for (const struct job *job = b->service->jobs.head; job && r >= 0; job = job->next) {
		bus_job_path(path, job->id);
		r = sd_bus_message_append(reply, "(ussdo)", job->id, bus_job_kind(job),
					  bus_text(target, sizeof target, job->target), bus_job_progress(b, job), path);
	}
	return r;
}

int bus_on_list_models(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return answer_list(userdata, m, "(sstuo)", append_models, ret_error);
}

int bus_on_list_sessions(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return answer_list(userdata, m, "(tuuso)", append_sessions, ret_error);
}

int bus_on_list_jobs(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return answer_list(userdata, m, "(ussdo)", append_jobs, ret_error);
}

int bus_on_get_status(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_want_document(userdata, m, MOE_QUERY_STATUS, ret_error);
}

int bus_on_get_stats(sd_bus_message *m, void *userdata, sd_bus_error *ret_error)
{
	return bus_want_document(userdata, m, MOE_QUERY_STATS, ret_error);
}
