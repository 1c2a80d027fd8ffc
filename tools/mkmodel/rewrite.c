/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/rewrite.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/file.h"
#include "model/index.h"
#include "tools/mkmodel/place.h"
#include "tools/mkmodel/shard.h"

#define COPY_BYTES (1u << 20)

/* One tensor of the model and what it becomes. */
struct step {
	const struct tensor *tensor;
	uint32_t items;
	bool made; /* by the rule; else the tensor is copied */
};

struct rewriter {
	const struct reader *reader;
	const struct rewrite_rule *rule;
	struct place place;
	struct progress progress;
	struct step *steps; /* by shard, then by offset */
	struct item *items; /* of all steps, in their order */
	uint64_t n_items, bytes;
};

static int compare_steps(const void *a, const void *b)
{
	const struct tensor *x = ((const struct step *)a)->tensor, *y = ((const struct step *)b)->tensor;

	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int copy_item(const struct tensor *t, struct item *ret, struct moe_error *err)
{
	if (t->n_dims > ITEM_DIMS_MAX)
		return moe_error_set(err, -ENOTSUP, "tensor %s: found %u dimensions; expected at most %d", t->name,
				     t->n_dims, ITEM_DIMS_MAX);
	*ret = (struct item){.name = strdup(t->name), .type = t->type, .n_dims = t->n_dims, .bytes = t->bytes};
	memcpy(ret->dims, t->dims, t->n_dims * sizeof *ret->dims);
	return ret->name ? 1 : moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
}

static int plan(struct rewriter *w, struct moe_error *err)
{
	const struct model *model = w->reader->model;

	w->steps = calloc(model->n_tensors + 1, sizeof *w->steps);
	w->items = calloc(model->n_tensors * REWRITE_ITEMS_MAX + 1, sizeof *w->items);
	if (!w->steps || !w->items)
		return moe_error_sys(err, -ENOMEM, "%s", model->path);
	for (uint64_t i = 0; i < model->n_tensors; i++)
		w->steps[i].tensor = &model->tensors[i];
	qsort(w->steps, model->n_tensors, sizeof *w->steps, compare_steps);
	for (uint64_t i = 0; i < model->n_tensors; i++) {
		struct item *to = &w->items[w->n_items];
		int n = w->rule->plan(w->rule->context, w->steps[i].tensor, to, err);

		w->steps[i].made = n > 0;
		if (n == 0)
			n = copy_item(w->steps[i].tensor, to, err);
		if (n < 0)
			return n;
		w->steps[i].items = (uint32_t)n;
		w->n_items += (uint32_t)n;
		for (int k = 0; k < n; k++)
			w->bytes += to[k].bytes;
	}
	return 0;
}

static int write_step(struct rewriter *w, int fd, const char *path, const struct step *step, const struct item *items,
		      struct moe_error *err)
{
	_cleanup_free_ uint8_t *bytes = NULL;
	uint64_t size = 0;
	int r;

	for (uint32_t i = 0; i < step->items; i++)
		size += items[i].bytes;
	bytes = malloc(size + 1);
	if (!bytes)
		return moe_error_sys(err, -ENOMEM, "tensor %s", step->tensor->name);
	r = step->made ? w->rule->make(w->rule->context, w->reader, step->tensor, bytes, err)
		       : reader_bytes(w->reader, step->tensor, bytes, err);
	return r < 0 ? r : progress_write(&w->progress, fd, path, bytes, size, err);
}

/* Steps `first` .. `last` and their items make one file. */
static int write_content(struct rewriter *w, int fd, const char *path, uint64_t first, uint64_t last,
			 const struct item *items, uint64_t n_items, struct moe_error *err)
{
	_cleanup_free_ char *header = NULL;
	struct progress none = {0};
	size_t header_bytes;
	int r = shard_header(&header, &header_bytes, path, items, n_items, err);

	if (r == 0)
		r = progress_write(&none, fd, path, header, header_bytes, err);
	for (uint64_t i = first; r == 0 && i < last; items += w->steps[i++].items)
		r = write_step(w, fd, path, &w->steps[i], items, err);
	return r;
}

static int write_shard(struct rewriter *w, uint64_t first, uint64_t last, const struct item *items, uint64_t n_items,
		       struct moe_error *err)
{
	_cleanup_free_ char *name = place_shard_name(&w->place, w->place.written);
	_cleanup_free_ char *path = name ? file_join(w->place.path, name) : NULL;
	int fd, r;

	if (!path)
		return moe_error_sys(err, -ENOMEM, "%s", w->place.path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return moe_error_sys(err, -errno, "%s", path);
	r = write_content(w, fd, path, first, last, items, n_items, err);
	if (close(fd) < 0 && r == 0)
		r = moe_error_sys(err, -errno, "%s", path);
	if (r < 0) {
		unlink(path);
		return r;
	}
	w->place.written++;
	for (uint64_t i = 0; r == 0 && i < n_items; i++)
		r = place_add(&w->place, items[i].name, name, err);
	return r;
}

static int write_shards(struct rewriter *w, struct moe_error *err)
{
	const uint64_t n = w->reader->model->n_tensors;
	const struct item *items = w->items;
	int r = 0;

	for (uint64_t first = 0, last = 0; r == 0 && first < n; first = last) {
		uint64_t n_items = 0;

		for (; last < n && w->steps[last].tensor->shard == w->steps[first].tensor->shard; last++)
			n_items += w->steps[last].items;
		r = write_shard(w, first, last, items, n_items, err);
		items += n_items;
	}
	return r;
}

static int copy_content(int from, int to, const char *path, struct moe_error *err)
{
	_cleanup_free_ char *chunk = malloc(COPY_BYTES);
	struct progress none = {0};
	ssize_t n = 1;
	int r = chunk ? 0 : moe_error_sys(err, -ENOMEM, "%s", path);

	while (r == 0 && n > 0) {
		n = read(from, chunk, COPY_BYTES);
		if (n < 0)
			return moe_error_sys(err, -errno, "%s", path);
		r = progress_write(&none, to, path, chunk, (size_t)n, err);
	}
	return r;
}

static int copy_file(const char *folder, const char *out, const char *name, struct moe_error *err)
{
	_cleanup_free_ char *from = file_join(folder, name), *to = file_join(out, name);
	_cleanup_close_ int in = -1, fd = -1;
	uint64_t bytes;

	if (!from || !to)
		return moe_error_sys(err, -ENOMEM, "%s/%s", folder, name);
	in = file_open(from, &bytes, err);
	if (in < 0)
		return in;
	fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return moe_error_sys(err, -errno, "%s", to);
	return copy_content(in, fd, to, err);
}

/* Tokenizer, text, licence: everything that is no shard, no index and no config. Folders within are left out. */
static bool is_other(const char *folder, const char *name)
{
	_cleanup_free_ char *path = file_join(folder, name);
	const char *end = strrchr(name, '.');
	struct stat st;

	if (strcmp(name, INDEX_FILE) == 0 || strcmp(name, "config.json") == 0 ||
	    (end && strcmp(end, ".safetensors") == 0))
		return false;
	return path && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Calls `each` for every such file until it fails. */
static int for_others(const char *folder, const char *out,
		      int (*each)(const char *folder, const char *out, const char *name, struct moe_error *err),
		      struct moe_error *err)
{
	const struct dirent *entry;
	DIR *dir = opendir(folder);
	int r = 0;

	if (!dir)
		return moe_error_sys(err, -errno, "%s", folder);
	while (r == 0 && (entry = readdir(dir)))
		if (is_other(folder, entry->d_name))
			r = each(folder, out, entry->d_name, err);
	closedir(dir);
	return r;
}

static int remove_file(const char *folder, const char *out, const char *name, struct moe_error *err)
{
	_cleanup_free_ char *path = file_join(out, name);

	if (path)
		unlink(path);
	return 0;
}

/* The shards that a tensor lies in; an index need not use all files. */
static uint32_t count_shards(const struct rewriter *w)
{
	uint32_t n = 0;

	for (uint64_t i = 0; i < w->reader->model->n_tensors; i++)
		n += i == 0 || w->steps[i].tensor->shard != w->steps[i - 1].tensor->shard;
	return n;
}

static int write_all(struct rewriter *w, const char *out, const json_t *config, bool progress, struct moe_error *err)
{
	int r = plan(w, err);

	if (r == 0)
		r = place_open(&w->place, out, count_shards(w), w->bytes, err);
	if (r < 0)
		return r;
	w->progress = progress_start(progress, w->bytes);
	r = write_shards(w, err);
	if (r == 0)
		r = for_others(w->reader->model->path, out, copy_file, err);
	if (r == 0)
		r = place_finish(&w->place, w->bytes, config, err);
	if (r < 0) /* the folder was empty: all of them are ours */
		for_others(w->reader->model->path, out, remove_file, NULL);
	return place_close(&w->place, r);
}

int rewrite_folder(const struct reader *reader, const char *out, const json_t *config, const struct rewrite_rule *rule,
		   bool progress, struct folder_result *ret, struct moe_error *err)
{
	struct rewriter w = {.reader = reader, .rule = rule};
	int r;

	r = write_all(&w, out, config, progress, err);
	if (r == 0)
		*ret = (struct folder_result){.n_tensors = w.n_items, .bytes = w.bytes, .shards = w.place.shards};
	for (uint64_t i = 0; w.items && i < reader->model->n_tensors * REWRITE_ITEMS_MAX; i++)
		free(w.items[i].name);
	free(w.items);
	free(w.steps);
	return r;
}
