/* SPDX-License-Identifier: MIT */
#include "simulate/trace-params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "policy/policy.h"

#define FIELD 64
#define K "cache_topk"
#define U "update_expert_num"

struct limits {
	double min, max;
	bool whole;
};

/* mrs is known by what it keeps, and published with what it takes. */
static bool is_rest(const struct policy_ops *ops, const char *key)
{
	return ops == &policy_mrs && strcmp(key, "alpha") == 0;
}

static bool find_limits(const struct policy_ops *ops, const char *key, struct limits *ret)
{
	if (ops == &policy_original && (strcmp(key, K) == 0 || strcmp(key, U) == 0)) {
		*ret = (struct limits){strcmp(key, K) == 0, CACHE_EXPERTS_MAX, true};
		return true;
	}
	if (!ops || !ops->param || (strcmp(ops->param, key) != 0 && !is_rest(ops, key)))
		return false;
	*ret = (struct limits){ops->param_min, ops->param_max, ops->param_whole};
	return true;
}

bool trace_params_has(const char *policy, const char *key)
{
	struct limits limits;

	return find_limits(policy_find(policy), key, &limits);
}

static void set(struct sim_tuning *to, const struct policy_ops *ops, const char *key, double value)
{
	if (ops != &policy_original) {
		to->tuned = true;
		to->value = is_rest(ops, key) ? 1 - value : value;
	} else if (strcmp(key, K) == 0) {
		to->cache_topk = (uint32_t)value;
	} else {
		to->limited = true;
		to->update_expert_num = (uint32_t)value;
	}
}

static int read_one(struct sim_tuning *to, const struct trace_at *at, const char *policy, const char *key,
		    const json_t *value, struct moe_error *err)
{
	const struct policy_ops *ops = policy_find(policy);
	const double number = json_number_value(value);
	char field[FIELD], found[32];
	struct limits limits;

	snprintf(field, sizeof field, "%s%.40s", at->array ? "params." : "", key);
	if (!find_limits(ops, key, &limits))
		return trace_wrong(at, field, err, "%.40s has no such number; %s%s expected", policy,
				   ops == &policy_original ? K ", " U
				   : ops && ops->param     ? ops->param
							   : "none",
				   ops == &policy_mrs ? " or alpha" : "");
	if (json_is_number(value) && number >= limits.min && number <= limits.max &&
	    (!limits.whole || number == floor(number))) {
		set(to, ops, key, number);
		return 0;
	}
	snprintf(found, sizeof found, "%g", number);
	return trace_wrong(at, field, err, "%s found, a %snumber from %.10g to %.10g expected",
			   json_is_real(value) ? found : trace_kind(value), limits.whole ? "whole " : "", limits.min,
			   limits.max);
}

int trace_params(struct sim_tuning *ret, const struct trace_at *at, const char *policy, const json_t *params,
		 struct moe_error *err)
{
	const char *key;
	json_t *value;
	int r = 0;

	*ret = (struct sim_tuning){0};
	if (params && !json_is_object(params))
		return trace_wrong(at, "params", err, "%s found, an object expected", trace_kind(params));
	if (policy_find(policy) == &policy_mrs && json_object_get(params, "kept") && json_object_get(params, "alpha"))
		return trace_wrong(at, "params", err, "kept and alpha found, one of them expected");
	json_object_foreach ((json_t *)params, key, value) {
		r = read_one(ret, at, policy, key, value, err);
		if (r < 0)
			break;
	}
	return r;
}
