/* SPDX-License-Identifier: MIT */
/* The daemon's command line: refused in one line, or a configuration within its limits. The input is as
 * fuzz-words.h. */
#include "base/log.h"
#include "daemon/config.h"
#include "daemon/pages.h"
#include "tests/fuzz/fuzz-words.h"

static void check_config(const struct config *c, const struct fuzz_words *w)
{
	fuzz_check(c->n_models <= CONFIG_MODELS_MAX && c->socket_mode <= 0777 && c->threads <= 4096);
	fuzz_check(c->spin_us <= 1000000 && c->ready_fd >= -1 && c->memory_max <= (uint64_t)1e18);
	fuzz_check(c->socket && c->isa_why && isa_name(c->isa) && c->pages >= PAGES_AUTO);
	for (uint32_t i = 0; i < c->n_models; i++) {
		fuzz_check(fuzz_words_have(w, c->models[i]));
		fuzz_check(!c->names[i] || fuzz_words_have(w, c->names[i]));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_words w = fuzz_words(data, size);
	struct config config;
	uint32_t changed = 1;
	struct moe_error err = {0};
	int r;

	setenv("MOE_EXPERTD_CONFIG", "/dev/null", 1);
	log_open("fuzz", LOG_LEVEL_ERR);
	r = config_parse(&config, w.argc, w.argv, &err);
	if (r < 0) {
		fuzz_check_refused(r, &err);
	} else if (r == 0) {
		check_config(&config, &w);
		fuzz_check(config_reload(&config, &changed, &err) == 0 && changed == 0);
		check_config(&config, &w);
		config_free(&config);
	}
	free(w.text);
	return 0;
}
