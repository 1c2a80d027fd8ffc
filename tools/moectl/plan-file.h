/* SPDX-License-Identifier: MIT */
/*
 * plan-file - the files of moectl plan: JSON that is read, and expert maps that are read and written.
 *
 * Law: a map is written whole or its file's name is in the error; one that Ascend's reader would misread is not
 * written. A folder is made only for a map whose place a configuration names.
 */
#ifndef TOOLS_PLAN_FILE_H
#define TOOLS_PLAN_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "placement/placement.h"

int plan_file_json(json_t **ret, const char *path, struct moe_error *err);
int plan_file_map(struct placement *ret, const char *path, struct moe_error *err);

/* `word` is what has named it, for texts: "--map". "-": standard output. */
int plan_file_write_map(const struct placement *p, const char *path, const char *word, struct moe_error *err);
/* The folders above it, where they are not there yet. */
int plan_file_make_folder(const char *path, const char *word, struct moe_error *err);

/* Whether bytes look like an expert map: what is in them the reader says. */
bool plan_file_is_map(const void *data, size_t size);

#endif
