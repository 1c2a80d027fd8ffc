/* SPDX-License-Identifier: MIT */
/*
 * rewrite - a model folder becomes another one: the same shards, each tensor as it is or what a rule makes of it, and
 * all other files as they are, but for the index and config.json.
 */
#ifndef MKMODEL_REWRITE_H
#define MKMODEL_REWRITE_H

#include "tools/mkmodel/catalog.h"
#include "tools/mkmodel/folder.h"
#include "tools/mkmodel/reader.h"

#define REWRITE_ITEMS_MAX 4

struct rewrite_rule {
	void *context;
	/* What takes the place of `tensor`: name (malloc'ed), type, dimensions and bytes of each; returns how many,
	 * 0: the tensor itself. */
	int (*plan)(void *context, const struct tensor *tensor, struct item ret[REWRITE_ITEMS_MAX],
		    struct moe_error *err);
	/* Their bytes, one after the other. */
	int (*make)(void *context, const struct reader *reader, const struct tensor *tensor, uint8_t *ret,
		    struct moe_error *err);
};

/* `out` does not exist yet or is an empty folder. `progress`: lines on stderr when it takes long. */
int rewrite_folder(const struct reader *reader, const char *out, const json_t *config, const struct rewrite_rule *rule,
		   bool progress, struct folder_result *ret, struct moe_error *err);

#endif
