/* SPDX-License-Identifier: MIT */
/* doctor-daemon - what moectl doctor asks the daemon, and what to type where it does not answer. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "daemon-pid.h"
#include "doctor.h"
#include "moectl.h"

static void check_pools(struct report *r, const json_t *models)
{
	const json_t *model, *pool;
	size_t i, j;

	json_array_foreach (models, i, model)
		json_array_foreach (json_object_get(model, "pools"), j, pool) {
			const char *better = get_text(pool, "better");
			char what[128], size[SHOW_TEXT];

			snprintf(what, sizeof what, "pages of %s, node %.0f", get_text(model, "name"),
				 get_number(pool, "node"));
			check(r, *better ? NOTE : FINE, what, better, "rung %s, %s", get_text(pool, "rung"),
			      show_bytes(size, get_number(pool, "bytes")));
		}
}

/* Of configured models that are there what a daemon would say of loaded ones. */
static json_t *configured(const struct report *r, const struct settings *s)
{
	json_t *models = json_array();

	for (uint32_t i = 0; i < s->n_models; i++) {
		const struct settings_model *m = &s->models[i];
		struct moe_error err;
		char path[PATH_MAX];

		if (settings_check_model(s, i, r->root, &err) > 0)
			continue; /* one before it, which is loaded once */
		snprintf(path, sizeof path, "%s%s", r->root, m->path);
		json_array_append_new(models, json_pack("{s:o, s:o}", "name", text_json(m->name ? m->name : m->path),
							"path", text_json(path)));
	}
	return models;
}

struct advice {
	enum verdict verdict;
	const char *fix;
};

/* Of a daemon that does not say what it has: what then helps. */
static struct advice advise(int code)
{
	switch (code) {
	case -ENOENT:
	case -ECONNREFUSED:
		return (struct advice){NOTE, "systemctl start moe-expertd, or moe-expertd --model DIR"};
	case -ETIMEDOUT:
		return (struct advice){PROBLEM, "systemctl restart moe-expertd, or end that process and start it anew"};
	case -EACCES:
	case -EPERM:
		return (struct advice){
			PROBLEM, "usermod -aG moe-expertd USER, and log in anew; or SocketMode= (expertd.conf(5))"};
	case -EDQUOT:
		return (struct advice){PROBLEM,
				       "end some of this user's connections (moectl sessions, as root); or raise that "
				       "limit (UidConnections=, UidFds= in expertd.conf(5))"};
	case -ENOTSOCK:
	case -ENAMETOOLONG:
		return (struct advice){PROBLEM, "name the daemon's socket: --socket, or $MOE_EXPERTD_SOCKET"};
	default:
		return (struct advice){PROBLEM, "journalctl -u moe-expertd may say why"};
	}
}

void check_daemon(struct report *r, const struct arguments *arg, const struct host *host, const struct settings *s)
{
	struct moe_error err = {0};
	json_t *document = ask_quietly(arg, MOE_DOCUMENT_MODELS, &err), *models;

	if (!document) {
		const struct advice advice = advise(err.code);

		check(r, advice.verdict, "daemon", advice.fix, "%s", err.text);
		check_memlock(r, host, daemon_listener(arg->socket).pid);
		models = configured(r, s);
		check_disks(r, models);
		json_decref(models);
		return;
	}
	check(r, FINE, "daemon", NULL, "answers");
	check_memlock(r, host, daemon_pid(arg->socket));
	check_pools(r, json_object_get(document, "models"));
	check_disks(r, json_object_get(document, "models"));
	json_decref(document);
}
