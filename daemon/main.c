/* SPDX-License-Identifier: MIT */
/* main - moe-expertd, the daemon: options, service, exit code; or, with --keep, its keeper. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/stdout.h"
#include "daemon/config.h"
#include "daemon/crash.h"
#include "daemon/handover.h"
#include "daemon/keeper.h"
#include "daemon/service.h"

#define EXIT_CANNOT_RUN 77 /* this system forbids io_uring (a CPU without AVX2: base/cpu-floor.c) */

static int keep(const struct config *config, int argc, char **argv, struct moe_error *err)
{
	char program[PATH_MAX];
	const struct keeper_params params = {
		.program = program,
		.argv = argv,
		.fds_max = HANDOVER_FDS_MAX,
		.stop_ms = KEEPER_STOP_MS,
		.watchdog_ms = KEEPER_WATCHDOG_MS,
		.ready_fd = config->ready_fd,
	};
	int r, code = 1, n = 0;

	for (int i = 0; i < argc; i++)
		if (argv[i])
			argv[n++] = argv[i];
	argv[n] = NULL;
	if (getenv("NOTIFY_SOCKET"))
		log_warning(
			"--keep: NOTIFY_SOCKET is not used: the service manager that set it can be the keeper itself "
			"(FileDescriptorStoreMax=, without --keep)");
	r = keeper_find_program(program, sizeof program, err);
	if (r == 0)
		r = keeper_run(&params, &code, err);
	if (r < 0)
		log_err("%s", err->text);
	return code;
}

static int serve(struct config *config, struct moe_error *err)
{
	struct handover *handover = NULL;
	struct service *service;
	bool leaves;
	int r;

	crash_init();
	r = handover_new(&handover, err);
	if (r == 0)
		r = service_new(&service, config, handover, err);
	if (r < 0) {
		log_err("%s", err->text);
		handover_free(handover);
		return r == -EOPNOTSUPP ? EXIT_CANNOT_RUN : 1;
	}
	r = service_run(service, &leaves);
	if (leaves) {
		handover_flush(handover);
		_exit(r < 0); /* whatever is tidied up now would be missed */
	}
	service_free(service);
	handover_free(handover);
	return r < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct moe_error err = {0};
	struct config config;
	int r;

	stdio_fill();
	log_open("moe-expertd", LOG_LEVEL_INFO);
	r = config_parse(&config, argc, argv, &err);
	if (r > 0)
		return stdout_end("moe-expertd", 0);
	if (r < 0) {
		log_err("%s", err.text);
		handover_refuse();
		return r == -EINVAL ? 2 : 1;
	}
	config_open_log(&config);
	r = config.keep ? keep(&config, argc, argv, &err) : serve(&config, &err);
	config_free(&config);
	return r;
}
