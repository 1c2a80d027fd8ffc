/* SPDX-License-Identifier: MIT */
/* The daemon's command line: refused in one line, or a configuration within its limits. The input is as
 * fuzz-words.h. */
#include "daemon/config.h"
#include "daemon/pages.h"
#include "tests/fuzz/fuzz-words.h"

static void check_config(const struct config *c, const struct fuzz_words *w, size_t size)
{
	fuzz_check(c->n_models <= CONFIG_MODELS_MAX && c->socket_mode <= 0777 && c->threads <= 4096);
	fuzz_check(c->spin_us <= 1000000 && c->ready_fd >= -1 && c->memory_max <= (uint64_t)1e18);
	fuzz_check(c->socket && c->isa_why && isa_name(c->isa) && c->pages >= PAGES_AUTO);
	for (uint32_t i = 0; i < c->n_models; i++) {
		fuzz_check(fuzz_words_have(w, size, c->models[i]));
		fuzz_check(!c->names[i] || fuzz_words_have(w, size, c->names[i]));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_words w = fuzz_words(data, size);
	struct config config;
	struct moe_error err = {0};
	int r = config_parse(&config, w.argc, w.argv, &err);

	if (r < 0)
		fuzz_check_refused(r, &err);
	else if (r == 0)
		check_config(&config, &w, size);
	free(w.text);
	return 0;
}
