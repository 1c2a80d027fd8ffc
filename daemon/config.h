/* SPDX-License-Identifier: MIT */
/* config - what the command line asks of the daemon, checked and with defaults filled in. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/accounts.h"
#include "kernels/kernels.h"
#include "moe-error.h"

#define CONFIG_MODELS_MAX 16

struct config {
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
	uint64_t uid_limits[ACCOUNT_RESOURCES]; /* 0: the default */
	uint64_t pool_max;                      /* bytes of one model, larger ones are tiered; 0: none are */
	bool writable_weights;
	bool push_cuda;
	uint32_t push_patience_s; /* 0: the default */
	bool private_mode;        /* end with the parent or with stdin */
	bool keep;                /* be the keeper, not the daemon */
	int ready_fd;             /* -1: none */
	bool verbose;
};

/* What concerns only the keeper is taken out of argv, where NULL is left.
 * 0: run; 1: --help or --version was answered, exit 0; -EINVAL: *err has one line, exit 2. */
int config_parse(struct config *ret, int argc, char **argv, struct moe_error *err);

#endif
