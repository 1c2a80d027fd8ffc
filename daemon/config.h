/* SPDX-License-Identifier: MIT */
/*
 * config - what files and command line ask of the daemon, checked and with defaults filled in.
 *
 * Law: what may be set stands in the table of settings/settings.h; here are its values as the daemon's own types, and
 * what only a command line says. The strings are those of `settings`. A --private daemon is its parent's alone: it
 * reads no file but that of --config.
 */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/accounts.h"
#include "kernels/kernels.h"
#include "moe-error.h"
#include "policy/policy.h"
#include "settings/exporter-address.h"
#include "settings/settings.h"

#define CONFIG_MODELS_MAX SETTINGS_MODELS_MAX

struct config {
	struct settings settings;
	const char *file; /* of --config, NULL: the system's */

	const char *socket;
	uint32_t socket_mode;
	const char *models[CONFIG_MODELS_MAX]; /* folders to load before READY */
	const char *names[CONFIG_MODELS_MAX];  /* NULL: the folder's name */
	uint32_t n_models;
	uint32_t threads; /* 0: every CPU */
	uint32_t spin_us; /* polling before sleep, pool and reactor */
	int pages;        /* PAGES_AUTO or a required rung */
	enum isa isa;
	const char *isa_why;
	uint64_t memory_max;                    /* bytes of all models, 0: what the host has */
	uint64_t fill_budget;                   /* bytes of fills with the pool for one device, 0: the default */
	uint64_t uid_limits[ACCOUNT_RESOURCES]; /* 0: by what there is */
	const struct policy_ops *tier_policy;   /* of models that are tiered, when they are loaded */
	uint64_t pool_max;                      /* bytes of one model, larger ones are tiered; 0: none are */
	uint64_t replica_max;                   /* bytes for copies of one model's hot experts; 0: none */
	bool writable_weights;
	int module; /* enum modpools_want */
	bool push_cuda;
	uint32_t push_patience_s;
	const char *bus, *bus_name; /* bus: "system", "user" or unix:..., NULL: none */
	bool metrics;               /* tell them to who asks there */
	struct exporter_address metrics_address;
	const char *state_directory; /* NULL: none */
	uint32_t heat_steps;
	bool private_mode; /* end with the parent or with stdin */
	bool keep;         /* be the keeper, not the daemon */
	int ready_fd;      /* -1: none */
	bool verbose;
};

/* What concerns only the keeper is taken out of argv, where NULL is left. Unknown keys in files are logged.
 * 0: run, and free it; 1: --help or --version was answered, exit 0; -errno: *err has one line; exit 2 at -EINVAL. */
int config_parse(struct config *ret, int argc, char **argv, struct moe_error *err);

/* Reads the files once more. What can change at run time has changed then, and the log says what did, and what would
 * only with a restart. 0 or -errno: *err says why, and all is as it was. *ret_changed: live settings that did. */
int config_reload(struct config *config, uint32_t *ret_changed, struct moe_error *err);

/* At the level that is set. */
void config_open_log(const struct config *config);

void config_free(struct config *config);

#endif
