/* SPDX-License-Identifier: MIT */
/* Configuration files, several in their order, between form feeds: refused in one line that names file and line, or all
 * values within their limits, and the same when they are read again. */
#include "settings/settings.h"
#include "tests/fuzz/fuzz.h"

#define TEXT_BYTES 8192

static uint32_t warnings;

static void warn(const char *text, void *userdata)
{
	fuzz_check(strncmp(text, "drop-in:", 8) == 0 && !strchr(text, '\n'));
	warnings++;
}

static void check_value(const struct settings *s, enum setting which)
{
	const struct setting_def *d = &settings_table[which];
	const struct setting_value *v = &s->values[which];
	char text[TEXT_BYTES], place[64];

	fuzz_check(*settings_text(s, which, text, sizeof text) && *settings_origin(s, which, place, sizeof place));
	if (v->text && d->type != SETTING_TYPE_BOOL && d->max)
		fuzz_check(v->number >= d->min && v->number <= d->max);
	if (which == SETTING_SOCKET && v->text)
		fuzz_check(*v->text == '/');
}

static int read_all(struct settings *s, const uint8_t *data, size_t size, struct moe_error *err)
{
	int r = 0;

	settings_init(s);
	s->warn = warn;
	while (r == 0 && size > 0) {
		const uint8_t *end = memchr(data, '\f', size);
		const size_t n = end ? (size_t)(end - data) : size;
		char *alone = fuzz_alone(data, n);

		r = settings_parse(s, "drop-in", alone, n, err);
		free(alone);
		data += n + (end ? 1 : 0);
		size -= n + (end ? 1 : 0);
	}
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct moe_error err = {0};
	struct settings s, again;
	const int r = read_all(&s, data, size, &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		fuzz_check(strncmp(err.text, "drop-in:", 8) == 0);
	} else {
		fuzz_check(read_all(&again, data, size, &err) == 0);
		fuzz_check(s.n_models <= SETTINGS_MODELS_MAX && s.n_models == again.n_models);
		for (uint32_t i = 0; i < s.n_models; i++)
			fuzz_check(*s.models[i].path == '/' && s.models[i].file);
		for (int i = 0; i < SETTINGS; i++) {
			check_value(&s, (enum setting)i);
			fuzz_check(settings_same(&s, &again, (enum setting)i));
			settings_swap(&s, &again, (enum setting)i);
		}
		settings_free(&again);
	}
	settings_free(&s);
	return 0;
}
