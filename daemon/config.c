/* SPDX-License-Identifier: MIT */
#include "daemon/config.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/bus.h"
#include "daemon/config-help.h"
#include "daemon/modpools.h"
#include "daemon/pages.h"
#include "daemon/registry.h"

#define READY_FD_MAX (1 << 20)

/* Settings have the numbers of enum setting and this more; --uid-limit that of its first one. */
#define OPT_SETTING 256

enum option_id { OPT_NAME = 512, OPT_CONFIG, OPT_PRIVATE, OPT_KEEP, OPT_READY_FD, OPT_VERSION };

static const struct option own_options[] = {
	{"name", required_argument, NULL, OPT_NAME},         {"config", required_argument, NULL, OPT_CONFIG},
	{"private", no_argument, NULL, OPT_PRIVATE},         {"keep", no_argument, NULL, OPT_KEEP},
	{"ready-fd", required_argument, NULL, OPT_READY_FD}, {"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
};

/* Those of the table, these, and an end. */
#define OPTIONS_MAX (SETTINGS + ARRAY_LEN(own_options) + 1)

static void list_options(struct option to[static OPTIONS_MAX])
{
	size_t n = 0;

	for (int i = 0; i < SETTINGS; i++) {
		const struct setting_def *d = &settings_table[i];

		if (i > 0 && strcmp(d->option, settings_table[i - 1].option) == 0)
			continue;
		to[n++] = (struct option){
			.name = d->option,
			.has_arg = *d->argument == '[' ? optional_argument : required_argument,
			.val = OPT_SETTING + i,
		};
	}
	memcpy(&to[n], own_options, sizeof own_options);
	to[n + ARRAY_LEN(own_options)] = (struct option){0};
}

/* -- options ------------------------------------------------------------------------------------------------------ */

static const struct settings_from by_option = {.kind = SETTINGS_FROM_OPTION};

static_assert(SETTING_UID_LEASES - SETTING_UID_BYTES == ACCOUNT_LEASES - ACCOUNT_BYTES, "each resource has a setting");

/* "sessions=64", "bytes=16G" */
static int set_uid_limit(struct settings *s, const char *text, struct moe_error *err)
{
	const char *equals = strchr(text, '=');
	const int resource = equals ? account_resource_from_name(text, (size_t)(equals - text)) : -EINVAL;

	if (resource < 0)
		return moe_error_set(
			err, -EINVAL,
			"--uid-limit '%s': NAME=N expected, NAME one of bytes, fds, connections, sessions, "
			"requests, leases",
			text);
	return settings_set(s, (enum setting)(SETTING_UID_BYTES + resource), equals + 1, &by_option, err);
}

/* "", "=no" or "=SECONDS" */
static int set_push_cuda(struct settings *s, const char *text, struct moe_error *err)
{
	const bool seconds = text && *text >= '0' && *text <= '9';
	int r = seconds ? settings_set(s, SETTING_PUSH_PATIENCE, text, &by_option, NULL) : 0;

	if (r == -EINVAL)
		return moe_error_set(err, r, "--push-cuda '%s': yes, no, or seconds from %llu to %llu expected", text,
				     (unsigned long long)settings_table[SETTING_PUSH_PATIENCE].min,
				     (unsigned long long)settings_table[SETTING_PUSH_PATIENCE].max);
	return r < 0 ? r : settings_set(s, SETTING_PUSH_CUDA, seconds || !text ? "yes" : text, &by_option, err);
}

static const char *isa_wrong(const char *level)
{
	enum isa isa;

	return isa_from_name(level, &isa) < 0 ? isa_why_not(level) : NULL;
}

/* At once, so that `--isa LEVEL --version` answers whether it runs here. */
static int set_isa(struct settings *s, const char *text, struct moe_error *err)
{
	const char *why = isa_wrong(text);

	if (why)
		return moe_error_set(err, -EINVAL, "--isa %s: %s", text, why);
	return settings_set(s, SETTING_ISA, text, &by_option, err);
}

static int set_ready_fd(struct config *c, const char *text, struct moe_error *err)
{
	char *end;
	const unsigned long n = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || n > READY_FD_MAX)
		return moe_error_set(err, -EINVAL, "--ready-fd '%s': a number from 0 to %d expected", text,
				     READY_FD_MAX);
	c->ready_fd = (int)n;
	return 0;
}

/* Of the last model. Empty: the folder's. */
static int set_name(struct settings *s, const char *text, struct moe_error *err)
{
	struct moe_error why;

	if (s->n_models == 0)
		return moe_error_set(err, -EINVAL, "--name %s: must follow the --model that it names", text);
	if (*text && settings_check_word(text, &why) < 0)
		return moe_error_set(err, -EINVAL, "--name: %s", why.text);
	return settings_name_model(s, text, err);
}

static int take_option(struct config *c, int id, const char *arg, struct moe_error *err)
{
	struct settings *s = &c->settings;

	switch (id) {
	case 'v':
		return settings_set(s, SETTING_VERBOSE, "yes", &by_option, err);
	case OPT_SETTING + SETTING_VERBOSE:
	case OPT_SETTING + SETTING_WRITABLE_WEIGHTS:
		return settings_set(s, (enum setting)(id - OPT_SETTING), arg ? arg : "yes", &by_option, err);
	case OPT_SETTING + SETTING_ISA:
		return set_isa(s, arg, err);
	case OPT_SETTING + SETTING_PUSH_CUDA:
		return set_push_cuda(s, arg, err);
	case OPT_SETTING + SETTING_UID_BYTES:
		return set_uid_limit(s, arg, err);
	case OPT_NAME:
		return set_name(s, arg, err);
	case OPT_CONFIG:
		if (!*arg)
			return moe_error_set(err, -EINVAL,
					     "--config '': the path of a file expected; left out, the system's files "
					     "are read");
		c->file = arg;
		break;
	case OPT_PRIVATE:
		c->private_mode = true;
		break;
	case OPT_KEEP:
		c->keep = true;
		break;
	case OPT_READY_FD:
		return set_ready_fd(c, arg, err);
	case '?':
		return moe_error_set(err, -EINVAL, "see moe-expertd --help");
	default:
		return settings_set(s, (enum setting)(id - OPT_SETTING), arg, &by_option, err);
	}
	return 0;
}

static int take_options(struct config *c, int argc, char **argv, struct moe_error *err)
{
	struct option options[OPTIONS_MAX];
	int id, r, first = optind;

	list_options(options);
	while ((id = getopt_long(argc, argv, "vh", options, NULL)) != -1) {
		if (id == 'h') {
			config_print_help();
			return 1;
		}
		if (id == OPT_VERSION) {
			printf("moe-expertd %s\n", MOE_VERSION);
			return 1;
		}
		r = take_option(c, id, optarg, err);
		if (r < 0)
			return r;
		/* Both are the keeper's own: the daemon that it starts is not told. */
		for (; first < optind; first++)
			if (id == OPT_KEEP || id == OPT_READY_FD)
				argv[first] = NULL;
	}
	if (optind < argc)
		return moe_error_set(err, -EINVAL, "unexpected argument '%s'; see moe-expertd --help", argv[optind]);
	if (c->keep && c->private_mode)
		return moe_error_set(
			err, -EINVAL,
			"--keep with --private: a private daemon ends with its parent; leave one of them out");
	return 0;
}

/* -- files -------------------------------------------------------------------------------------------------------- */

static void warn(const char *text, void *userdata)
{
	log_warning("%s", text);
}

/* What the files say alone. */
static int read_files(struct settings *ret, const struct config *c, struct moe_error *err)
{
	settings_init(ret);
	ret->warn = warn;
	return c->private_mode && !c->file ? 0 : settings_load(ret, c->file, "", err);
}

/* A level that settings_check has let through. */
static void apply_isa(struct config *c)
{
	const struct setting_value *v = &c->settings.values[SETTING_ISA];

	c->isa = isa_detect(&c->isa_why);
	if (!v->text || strcmp(v->text, "auto") == 0)
		return;
	isa_from_name(v->text, &c->isa);
	c->isa_why = v->kind == SETTINGS_FROM_FILE ? "forced by Isa=" : "forced by --isa";
}

static const char *text_of(const struct config *c, enum setting which)
{
	const char *text = c->settings.values[which].text;

	return text ? text : settings_table[which].preset;
}

static void apply_metrics(struct config *c)
{
	const char *text = text_of(c, SETTING_METRICS);

	c->metrics = strcmp(text, "off") != 0;
	if (c->metrics && exporter_address_parse(&c->metrics_address, text, NULL) < 0)
		assert(!"settings_check reads it the same way");
}

static void apply_bus(struct config *c)
{
	const char *text = text_of(c, SETTING_BUS);

	c->bus = strcmp(text, "off") == 0 ? NULL : text;
	c->bus_name = text_of(c, SETTING_BUS_NAME);
}

/* $STATE_DIRECTORY is the service manager's: of several folders the first. A private daemon is its parent's alone. */
static const char *state_directory(const struct config *c)
{
	static char folder[PATH_MAX];
	const char *set = c->settings.values[SETTING_STATE_DIRECTORY].text;
	const char *from = c->private_mode ? NULL : getenv("STATE_DIRECTORY");

	if (set || !from || *from != '/')
		return set;
	snprintf(folder, sizeof folder, "%.*s", (int)strcspn(from, ":"), from);
	return folder;
}

/* In the order of the table's words. */
static int module_of(const char *word)
{
	return strcmp(word, "yes") == 0 ? MODPOOLS_YES : strcmp(word, "no") == 0 ? MODPOOLS_NO : MODPOOLS_AUTO;
}

/* From what is set, and checked, to the daemon's own types. */
static void apply(struct config *c)
{
	const struct settings *s = &c->settings;
	const struct setting_value *v = s->values;

	apply_isa(c);
	apply_metrics(c);
	apply_bus(c);
	c->socket = v[SETTING_SOCKET].text ? v[SETTING_SOCKET].text : settings_table[SETTING_SOCKET].preset;
	c->socket_mode = (uint32_t)v[SETTING_SOCKET_MODE].number;
	c->verbose = v[SETTING_VERBOSE].number;
	c->n_models = s->n_models;
	for (uint32_t i = 0; i < s->n_models; i++) {
		c->models[i] = s->models[i].path;
		c->names[i] = s->models[i].name;
	}
	if (pages_rung_from_name(v[SETTING_PAGES].text ? v[SETTING_PAGES].text : "auto", &c->pages) < 0)
		assert(!"the table's words are those of pages.h");
	c->memory_max = v[SETTING_MEMORY_MAX].number;
	c->pool_max = v[SETTING_POOL_MAX].number;
	c->replica_max = v[SETTING_REPLICA_MAX].number;
	c->tier_policy = policy_find(v[SETTING_TIER_POLICY].text); /* the table's words are those of policy.h */
	c->heat_steps = (uint32_t)v[SETTING_HEAT_STEPS].number;
	c->state_directory = state_directory(c);
	c->writable_weights = v[SETTING_WRITABLE_WEIGHTS].number;
	c->module = module_of(text_of(c, SETTING_MODULE));
	c->threads = (uint32_t)v[SETTING_THREADS].number;
	c->spin_us = (uint32_t)v[SETTING_SPIN].number;
	c->fill_budget = v[SETTING_FILL_BUDGET].number;
	c->push_cuda = v[SETTING_PUSH_CUDA].number;
	c->push_patience_s = (uint32_t)v[SETTING_PUSH_PATIENCE].number;
	for (int i = 0; i < ACCOUNT_RESOURCES; i++)
		c->uid_limits[i] = v[SETTING_UID_BYTES + i].number;
}

int config_parse(struct config *ret, int argc, char **argv, struct moe_error *err)
{
	struct config c = {.ready_fd = -1};
	struct settings files;
	int r;

	settings_init(&c.settings);
	r = take_options(&c, argc, argv, err);
	if (r != 0) {
		settings_free(&c.settings);
		return r;
	}
	r = read_files(&files, &c, err);
	if (r == -ENOENT && c.file)
		r = -EINVAL; /* it is the option that names none */
	for (int i = 0; i < SETTINGS; i++)
		if (c.settings.values[i].kind != SETTINGS_FROM_OPTION)
			settings_swap(&c.settings, &files, (enum setting)i);
	settings_free(&files);
	if (r == 0)
		r = settings_check(&c.settings, isa_wrong, err);
	if (r < 0) {
		settings_free(&c.settings);
		return r;
	}
	apply(&c);
	*ret = c;
	return 0;
}

void config_open_log(const struct config *c)
{
	log_open("moe-expertd", c->verbose ? LOG_LEVEL_DEBUG : c->private_mode ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO);
}

void config_free(struct config *c)
{
	settings_free(&c->settings);
}

/* -- once more ---------------------------------------------------------------------------------------------------- */

/* True: it is to change now. */
static bool report(const struct config *c, const struct settings *now, enum setting which)
{
	const struct setting_def *d = &settings_table[which];
	char before[1024], after[1024], place[512];
	const char *old = settings_text(&c->settings, which, before, sizeof before);
	const char *new = settings_text(now, which, after, sizeof after);

	settings_origin(now, which, place, sizeof place);
	if (which == SETTING_MODEL)
		log_notice("Model= has changed (%s): moectl load and unload do that now, a restart does it as well",
			   place);
	else if (d->live)
		log_notice("%s=%s (%s), before: %s", d->key, new, place, old);
	else
		log_notice("%s=%s (%s) needs a restart; still in force: %s", d->key, new, place, old);
	return d->live;
}

/* What needs a restart is checked as well: the daemon would not start with it. What an option goes before is not, as
 * at the start. Models that are listed as before are not looked for on their disks. */
static int check_files(struct settings *now, const struct config *c, struct moe_error *err)
{
	struct settings defaults;
	int r;

	settings_init(&defaults);
	for (int i = 0; i < SETTINGS; i++)
		if (c->settings.values[i].kind == SETTINGS_FROM_OPTION)
			settings_swap(now, &defaults, (enum setting)i);
	r = settings_check(now, isa_wrong, err);
	if (r == 0 && !settings_same(&c->settings, now, SETTING_MODEL))
		r = settings_check_models(now, "", err);
	settings_free(&defaults);
	return r;
}

int config_reload(struct config *c, uint32_t *ret_changed, struct moe_error *err)
{
	struct settings now;
	uint32_t changed = 0;
	int r = read_files(&now, c, err);

	if (r == 0)
		r = check_files(&now, c, err);
	for (int i = 0; r == 0 && i < SETTINGS; i++) {
		const enum setting which = (enum setting)i;

		if (c->settings.values[i].kind == SETTINGS_FROM_OPTION)
			continue;
		if (!settings_same(&c->settings, &now, which)) {
			if (!report(c, &now, which))
				continue;
			changed++;
		}
		settings_swap(&c->settings, &now, which);
	}
	settings_free(&now);
	if (r < 0)
		return r;
	apply(c);
	*ret_changed = changed;
	return 0;
}
