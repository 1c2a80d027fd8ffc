/* SPDX-License-Identifier: MIT */
/* check - what the type of a setting cannot tell: whether a daemon could begin with these values. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/error.h"
#include "settings/exporter-address.h"
#include "settings/settings.h"

static const char *text_of(const struct settings *s, enum setting which)
{
	const char *text = s->values[which].text;

	return text ? text : settings_table[which].preset;
}

/* Names the place, and what is expected. */
static int refuse(const struct settings *s, enum setting which, const char *why, struct moe_error *err)
{
	const struct setting_def *d = &settings_table[which];
	char place[512];

	if (s->values[which].kind != SETTINGS_FROM_FILE)
		return moe_error_set(err, -EINVAL, "--%s '%s': %s", d->option, text_of(s, which), why);
	return moe_error_set(err, -EINVAL, "%s: %s=%s: %s", settings_origin(s, which, place, sizeof place), d->key,
			     text_of(s, which), why);
}

static int check_socket(const struct settings *s, struct moe_error *err)
{
	const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
	char why[64];

	if (strlen(text_of(s, SETTING_SOCKET)) <= most)
		return 0;
	snprintf(why, sizeof why, "a path of at most %zu bytes expected", most);
	return refuse(s, SETTING_SOCKET, why, err);
}

static int check_metrics(const struct settings *s, struct moe_error *err)
{
	const char *text = text_of(s, SETTING_METRICS);
	struct exporter_address address;
	struct moe_error why;

	if (strcmp(text, "off") == 0 || exporter_address_parse(&address, text, &why) == 0)
		return 0;
	return refuse(s, SETTING_METRICS, why.text, err);
}

static int check_bus(const struct settings *s, struct moe_error *err)
{
	const char *text = text_of(s, SETTING_BUS);

	if (strcmp(text, "off") == 0 || strcmp(text, "system") == 0 || strcmp(text, "user") == 0 ||
	    strncmp(text, "unix:", 5) == 0)
		return 0;
	return refuse(s, SETTING_BUS, "off, system, user or unix:path=... expected", err);
}

/* One element behind the prefix, which is the default, that the bus's policy lets the daemon own. */
static int check_bus_name(const struct settings *s, struct moe_error *err)
{
	static const char element[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
	const char *stem = settings_table[SETTING_BUS_NAME].preset, *text = text_of(s, SETTING_BUS_NAME);
	const char *rest = strncmp(text, stem, strlen(stem)) == 0 ? text + strlen(stem) : "?";
	const size_t good = *rest == '.' ? strspn(rest + 1, element) : 0;
	char why[160];

	if (!*rest || (good > 0 && !rest[good + 1] && !(rest[1] >= '0' && rest[1] <= '9') && strlen(text) <= 255))
		return 0;
	snprintf(why, sizeof why,
		 "%s or %s.X expected, X of letters, digits and _, not beginning with a digit, 255 bytes in all", stem,
		 stem);
	return refuse(s, SETTING_BUS_NAME, why, err);
}

int settings_check(const struct settings *s, settings_isa_wrong *isa_wrong, struct moe_error *err)
{
	const char *isa = s->values[SETTING_ISA].text, *why = isa ? isa_wrong(isa) : NULL;
	int r = why ? refuse(s, SETTING_ISA, why, err) : 0;

	if (r == 0)
		r = check_socket(s, err);
	if (r == 0)
		r = check_metrics(s, err);
	if (r == 0)
		r = check_bus(s, err);
	if (r == 0)
		r = check_bus_name(s, err);
	return r;
}
