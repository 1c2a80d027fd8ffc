/* SPDX-License-Identifier: MIT */
#include "daemon/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/closer.h"

#define FREEING_US 10000
#define FREEING_NS 60000000000ull /* most: a tenth of a second a GiB */

static int on_progress(uint64_t done, uint64_t total, uint64_t elapsed_ns, void *userdata)
{
	struct load *load = userdata;

	if (done == 0)
		load->prepared_ns = elapsed_ns; /* memory is being prefaulted: this time says nothing of reading */
	atomic_store(&load->total_bytes, total);
	atomic_store(&load->elapsed_ns, elapsed_ns - load->prepared_ns);
	atomic_store(&load->done_bytes, done);
	loop_wake(load->loop);
	return atomic_load(&load->cancelled) ? -ECANCELED : 0;
}

void load_say_who(int code, struct moe_error *err)
{
	const size_t used = err ? strlen(err->text) : 0;
	const unsigned uid = (unsigned)geteuid();

	if (code == -EACCES && err)
		snprintf(err->text + used, sizeof err->text - used,
			 ": the daemon reads with the rights of its own user, uid %u: setfacl -m u:%u:rX on the files "
			 "and all folders above (below /home a unit with ProtectHome= sees nothing)",
			 uid, uid);
}

/* A model that was unloaded just now still has memory that this one may need; one whose disk does not answer has it for
 * good. */
static void await_memory(const struct load *load)
{
	const uint64_t end = now_ns() + FREEING_NS;

	while (closer_is_freeing() && !atomic_load(&load->cancelled) && now_ns() < end)
		usleep(FREEING_US);
	if (closer_is_freeing() && !atomic_load(&load->cancelled))
		log_warning(
			"%s: what was unloaded before is not free after %llu s (its disk does not answer?): loading "
			"without its memory",
			load->path, FREEING_NS / 1000000000ull);
}

static void *run(void *userdata)
{
	struct load *load = userdata;

	pthread_setname_np(pthread_self(), "moe-load");
	await_memory(load);
	load->code = store_load(&load->result, &load->params, &load->error);
	if (load->error.text[0] == '/') /* of a file; memory may be refused so, too */
		load_say_who(load->code, &load->error);
	if (load->code == 0 && load->after.run)
		load->after.run(load->result, load->after.userdata);
	atomic_store(&load->finished, true);
	loop_wake(load->loop);
	return NULL;
}

int load_start(struct load **ret, const struct store_params *params, const struct load_after *after, struct loop *loop,
	       struct moe_error *err)
{
	struct load *load = calloc(1, sizeof *load);
	int r;

	if (!load)
		return moe_error_sys(err, -ENOMEM, "load");
	load->path = strdup(params->path);
	load->name = strdup(params->name ? params->name : "");
	load->params = *params;
	load->params.path = load->path;
	load->params.name = load->name;
	load->params.progress = on_progress;
	load->params.userdata = load;
	load->params.moved = &load->moved;
	load->after = after ? *after : (struct load_after){.run = NULL};
	load->loop = loop;
	r = load->path && load->name ? -pthread_create(&load->thread, NULL, run, load) : -ENOMEM;
	if (r < 0) {
		free(load->path);
		free(load->name);
		free(load);
		return moe_error_sys(err, r, "%s: cannot start loading", params->path);
	}
	*ret = load;
	return 0;
}

int load_code(const struct load *load, struct moe_error *err)
{
	*err = load->error;
	if (load->code == 0 && atomic_load(&load->cancelled))
		return moe_error_set(err, -ECANCELED, "%s: loading was canceled", load->path);
	return load->code;
}

struct load *load_free(struct load *load)
{
	if (load) {
		atomic_store(&load->cancelled, true);
		pthread_join(load->thread, NULL);
		resident_free(load->result);
		free(load->path);
		free(load->name);
		free(load);
	}
	return NULL;
}

uint64_t load_eta_ns(const struct load *load)
{
	const uint64_t done = atomic_load(&load->done_bytes), total = atomic_load(&load->total_bytes);

	if (done == 0 || total <= done)
		return 0;
	return (uint64_t)((double)atomic_load(&load->elapsed_ns) * (double)(total - done) / (double)done);
}
