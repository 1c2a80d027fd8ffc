/* SPDX-License-Identifier: MIT */
/* simulate-params - numbers of rules that differ from their own: --param, a run's "params", and how both are shown. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "policy/policy.h"
#include "simulate.h"
#include "simulate/trace-params.h"

#define WORD_MAX 64

static json_t *number_of(const char *text)
{
	char *end;
	const long long whole = strtoll(text, &end, 10);
	const double number = *end ? strtod(text, &end) : 0;

	if (end == text || *end)
		return NULL;
	return number != 0 || strpbrk(text, ".eEnN") ? json_real(number) : json_integer(whole);
}

/* What no policy would take: who runs which is not known yet. */
static int check_number(const char *key, json_t *value, struct moe_error *err)
{
	const struct trace_at at = {.file = "--param"};
	json_t *one = json_pack("{sO}", key, value);
	struct sim_tuning tuning;
	int r = -ENOENT;

	if (!one)
		return moe_error_set(err, -ENOMEM, "--param: no memory");
	for (size_t i = 0; policy_at(i) && r < 0; i++)
		if (trace_params_has(policy_at(i)->name, key))
			r = trace_params(&tuning, &at, policy_at(i)->name, one, err);
	json_decref(one);
	return r == -ENOENT ? moe_error_set(err, -EINVAL, "--param: %s: no policy has it", key) : r;
}

int simulate_params(json_t **ret, const char *list, struct moe_error *err)
{
	json_t *all = json_object();
	char word[WORD_MAX], *equals;
	int r = all ? 0 : moe_error_set(err, -ENOMEM, "--param: no memory");

	while (r == 0 && list) {
		const size_t n = strcspn(list, ",");
		json_t *value;

		snprintf(word, sizeof word, "%.*s", (int)MIN(n, sizeof word - 1), list);
		list = list[n] ? list + n + 1 : NULL;
		equals = strchr(word, '=');
		value = equals ? number_of(equals + 1) : NULL;
		if (!value)
			r = moe_error_set(err, -EINVAL,
					  "--param: '%s' found, NAME=NUMBER as in kept=0.9 or period=32 expected",
					  word);
		else
			*equals = '\0';
		if (r == 0)
			r = check_number(word, value, err);
		if (r == 0 && json_object_get(all, word))
			r = moe_error_set(err, -EINVAL, "--param: %s found twice", word);
		if (r == 0)
			json_object_set(all, word, value);
		json_decref(value);
	}
	if (r == 0)
		*ret = all;
	else
		json_decref(all);
	return r;
}

/* Of what differs from the policy's own numbers. */
static void make_label(struct run *run)
{
	const struct policy_ops *ops = policy_find(run->policy);
	const char *key;
	json_t *value;
	size_t n = 0;

	if (run->tuning.tuned && ops && run->tuning.value == ops->param_value)
		return;
	json_object_foreach (run->params, key, value)
		if (n < sizeof run->label)
			n += (size_t)snprintf(run->label + n, sizeof run->label - n, "%s%s %.5g", n ? " " : "", key,
					      json_number_value(value));
}

int run_tune(struct run *run, const json_t *all, struct moe_error *err)
{
	const struct trace_at at = {.file = "--param"};
	const char *key;
	json_t *value;

	json_object_foreach ((json_t *)all, key, value) {
		if (run->mode > SIM_ATOMIC || !trace_params_has(run->policy, key))
			continue;
		if (!run->params)
			run->params = json_object();
		if (!run->params || json_object_set(run->params, key, value) < 0)
			return moe_error_set(err, -ENOMEM, "--param: no memory");
	}
	if (trace_params(&run->tuning, &at, run->policy, run->params, err) < 0)
		return -EINVAL;
	make_label(run);
	return 0;
}

int simulate_params_used(const struct runs *runs, const json_t *all, struct moe_error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach ((json_t *)all, key, value) {
		bool used = false;

		for (uint32_t i = 0; i < runs->n; i++)
			used |= runs->runs[i].mode <= SIM_ATOMIC && trace_params_has(runs->runs[i].policy, key);
		if (!used)
			return moe_error_set(err, -EINVAL, "--param: %s: no policy that is run has it", key);
	}
	return 0;
}

json_t *run_params(const struct run *run, bool calibrated)
{
	const struct policy_ops *ops = policy_find(run->policy);
	json_t *params = run->params ? json_deep_copy(run->params) : json_object();

	if (!run->params && ops && ops->param && run->mode <= SIM_ATOMIC)
		json_object_set_new(params, ops->param,
				    ops->param_whole ? json_integer((json_int_t)ops->param_value)
						     : json_real(ops->param_value));
	if (calibrated && ops == &policy_static)
		json_object_set_new(params, "calibrated", json_true());
	return params;
}
