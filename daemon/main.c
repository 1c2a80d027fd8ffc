/* SPDX-License-Identifier: MIT */
/* main - moe-expertd, the daemon: options, service, exit code. */
#include <errno.h>
#include <stdio.h>

#include "base/log.h"
#include "daemon/config.h"
#include "daemon/service.h"

#define EXIT_CANNOT_RUN 77 /* this system forbids io_uring */

int main(int argc, char **argv)
{
	struct moe_error err = {0};
	struct service *service;
	struct config config;
	int r = config_parse(&config, argc, argv, &err);

	if (r > 0)
		return 0;
	log_open("moe-expertd", r == 0 && config.verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
	if (r < 0) {
		log_err("%s", err.text);
		return 2;
	}
	if (config.private_mode && !config.verbose)
		log_open("moe-expertd", LOG_LEVEL_WARNING);
	r = service_new(&service, &config, &err);
	if (r < 0) {
		log_err("%s", err.text);
		return r == -EOPNOTSUPP ? EXIT_CANNOT_RUN : 1;
	}
	r = service_run(service);
	service_free(service);
	return r < 0 ? 1 : 0;
}
