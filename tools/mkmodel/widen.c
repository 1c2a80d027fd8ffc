/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/widen.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "model/family.h"
#include "model/file.h"
#include "tools/mkmodel/number.h"
#include "tools/mkmodel/reader.h"
#include "tools/mkmodel/rewrite.h"

struct context {
	const struct reader *reader;
	uint32_t hidden, inter; /* factors */
};

/* How often a tensor's rows and columns are repeated. Columns are divided by as much if they are read, not written. */
struct factors {
	uint32_t rows, cols;
	bool divide;
};

enum role { ROLE_NONE, ROLE_EMBEDS, ROLE_READS, ROLE_WRITES, ROLE_SCALES };

/* What the tensors beside the experts do with the hidden state, by what their names contain; the first one counts. */
static const struct {
	const char *word;
	enum role role;
} roles[] = {
	{"embed_tokens.", ROLE_EMBEDS},
	{"lm_head.", ROLE_READS},
	{"q_norm.", ROLE_NONE},
	{"k_norm.", ROLE_NONE},
	{"layernorm.", ROLE_SCALES},
	{"model.norm.", ROLE_SCALES},
	{"o_proj.bias", ROLE_SCALES},
	{"_proj.bias", ROLE_NONE},
	{"q_proj.weight", ROLE_READS},
	{"k_proj.weight", ROLE_READS},
	{"v_proj.weight", ROLE_READS},
	{"o_proj.weight", ROLE_WRITES},
	{"gate_proj.weight", ROLE_READS},
	{"up_proj.weight", ROLE_READS},
	{"down_proj.weight", ROLE_WRITES},
	{"shared_expert_gate.weight", ROLE_READS},
	{"mlp.gate.weight", ROLE_READS},
	{"block_sparse_moe.gate.weight", ROLE_READS},
};

static int find_role(const struct tensor *t, enum role *ret, struct moe_error *err)
{
	for (size_t i = 0; i < ARRAY_LEN(roles); i++)
		if (strstr(t->name, roles[i].word)) {
			*ret = roles[i].role;
			return 0;
		}
	return moe_error_set(err, -ENOTSUP, "tensor %s: widen does not know what it does; expected the tensors of %s",
			     t->name, "mixtral, qwen2_moe, qwen3_moe or olmoe");
}

/* The experts' down matrices have as many rows as the hidden state, the others as many columns. */
static bool is_down(const struct context *c, const struct tensor *t)
{
	const char *part = family_spec(c->reader->model->config.family)->part[PART_DOWN];
	const char *at = strstr(t->name, ".experts.");

	return at && strstr(at, part);
}

static int find_factors(const struct context *c, const struct tensor *t, struct factors *ret, struct moe_error *err)
{
	enum role role = ROLE_NONE;
	int r;

	if (reader_is_expert(c->reader, t)) {
		*ret = is_down(c, t) ? (struct factors){c->hidden, c->inter, true}
				     : (struct factors){c->inter, c->hidden, true};
		return 0;
	}
	r = find_role(t, &role, err);
	if (r < 0)
		return r;
	*ret = (struct factors){1, 1, false};
	switch (role) {
	case ROLE_EMBEDS:
		ret->cols = c->hidden;
		break;
	case ROLE_READS:
		ret->cols = c->hidden;
		ret->divide = true;
		break;
	case ROLE_WRITES:
	case ROLE_SCALES:
		ret->rows = c->hidden;
		break;
	case ROLE_NONE:
		break;
	}
	return 0;
}

static int plan(void *context, const struct tensor *t, struct item ret[REWRITE_ITEMS_MAX], struct moe_error *err)
{
	struct factors f;
	int r = find_factors(context, t, &f, err);

	if (r < 0 || (f.rows == 1 && f.cols == 1))
		return r;
	if (t->n_dims > 2 || (t->n_dims == 1 && f.cols != 1))
		return moe_error_set(err, -ENOTSUP, "tensor %s: found %u dimensions; expected a matrix or a vector",
				     t->name, t->n_dims);
	ret[0] = (struct item){.name = strdup(t->name), .type = t->type, .n_dims = t->n_dims};
	ret[0].dims[0] = t->dims[0] * f.rows;
	ret[0].dims[1] = t->dims[1] * f.cols;
	ret[0].bytes = t->bytes * f.rows * f.cols;
	return ret[0].name ? 1 : moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
}

static int make(void *context, const struct reader *reader, const struct tensor *t, uint8_t *ret, struct moe_error *err)
{
	const uint64_t rows = t->dims[0], cols = t->n_dims == 2 ? t->dims[1] : 1;
	_cleanup_free_ float *w = malloc(rows * cols * sizeof *w + 1);
	struct factors f;
	int r = find_factors(context, t, &f, err);

	if (r < 0)
		return r;
	r = w ? reader_floats(reader, t, w, err) : moe_error_sys(err, -ENOMEM, "tensor %s", t->name);
	if (r < 0)
		return r;
	for (uint64_t row = 0; row < rows * f.rows; row++)
		for (uint64_t col = 0; col < cols * f.cols; col++) {
			const float x = w[row % rows * cols + col % cols];

			ret += number_store(t->type, f.divide ? x / (float)f.cols : x, ret);
		}
	return 0;
}

static int factor(const char *option, uint32_t from, uint32_t to, uint32_t *ret, struct moe_error *err)
{
	*ret = to ? to / from : 1;
	if (to && (to % from || *ret == 0 || (*ret & (*ret - 1))))
		return moe_error_set(err, -EINVAL, "%s: found %u; expected the model's %u times a power of two", option,
				     to, from);
	return 0;
}

/* config.json with the new sizes. head_dim, where it has been hidden_size / heads, is named: the heads stay. */
static json_t *new_config(const struct model *model, const struct context *c)
{
	const struct model_config *from = &model->config;
	const char *inter = family_spec(from->family)->inter;
	const json_int_t heads = json_integer_value(json_object_get(from->json, "num_attention_heads"));
	json_t *config = json_deep_copy(from->json);
	const json_t *head = json_object_get(config, "head_dim");

	if (!json_is_integer(head) && heads > 0)
		json_object_set_new(config, "head_dim", json_integer(from->hidden / heads));
	json_object_set_new(config, "hidden_size", json_integer((json_int_t)from->hidden * c->hidden));
	json_object_set_new(config, inter, json_integer((json_int_t)from->inter * c->inter));
	return config;
}

static int check(const struct model *model, struct moe_error *err)
{
	switch (model->config.family) {
	case FAMILY_MIXTRAL:
	case FAMILY_QWEN2_MOE:
	case FAMILY_QWEN3_MOE:
	case FAMILY_OLMOE:
		return 0;
	default:
		return moe_error_set(err, -ENOTSUP,
				     "%s: found a model of family %s; expected mixtral, qwen2_moe, qwen3_moe or olmoe",
				     model->path, model_family_name(model->config.family));
	}
}

static void cleanup_model(struct model **model)
{
	model_free(*model);
}

int widen(const char *folder, const char *out, uint32_t hidden, uint32_t inter, bool progress,
	  struct folder_result *ret, struct moe_error *err)
{
	_cleanup_(cleanup_model) struct model *model = NULL;
	_cleanup_(reader_close) struct reader reader = {0};
	_cleanup_json_ json_t *config = NULL;
	struct context c = {.reader = &reader};
	const struct rewrite_rule rule = {.context = &c, .plan = plan, .make = make};
	int r = model_open(&model, folder, err);

	if (r == 0)
		r = check(model, err);
	if (r == 0)
		r = factor("--hidden", model->config.hidden, hidden, &c.hidden, err);
	if (r == 0)
		r = factor("--inter", model->config.inter, inter, &c.inter, err);
	if (r == 0)
		r = reader_open(&reader, model, err);
	if (r < 0)
		return r;
	config = new_config(model, &c);
	if (!config)
		return moe_error_sys(err, -ENOMEM, "%s", folder);
	return rewrite_folder(&reader, out, config, &rule, progress, ret, err);
}
