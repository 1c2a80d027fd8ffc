/* SPDX-License-Identifier: MIT */
/*
 * fuzz-daemon - the whole service in this process, with a model of 60 KiB and a pool of one thread; its reactor turns
 * only when it is asked to, and until nothing is left to do, so that an input always meets the same daemon.
 */
#ifndef TESTS_FUZZ_FUZZ_DAEMON_H
#define TESTS_FUZZ_FUZZ_DAEMON_H

#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "daemon/peer.h"
#include "daemon/service.h"
#include "tests/fuzz/fuzz.h"
#include "tests/gguf-file.h"

struct fuzz_daemon {
	struct service *service;
	struct config config;
	char folder[64], socket[96], model[96];
};

static struct fuzz_daemon fuzz_daemon;

/* What has come is handled, and what it leads to at once. */
static inline void fuzz_daemon_turn(void)
{
	while (loop_turn(fuzz_daemon.service->loop))
		;
}

static inline void fuzz_daemon_stop(void)
{
	service_free(fuzz_daemon.service);
	unlink(fuzz_daemon.model);
	rmdir(fuzz_daemon.folder);
}

/* Again if the input before took it away. */
static inline void fuzz_daemon_load(void)
{
	struct moe_error err = {0};

	if (fuzz_daemon.service->registry.n > 0)
		return;
	fuzz_check(service_load(fuzz_daemon.service, NULL, fuzz_daemon.model, "small", &err) == 0);
	while (fuzz_daemon.service->load)
		if (!loop_turn(fuzz_daemon.service->loop))
			sched_yield(); /* to the load */
	fuzz_check(fuzz_daemon.service->registry.n == 1);
}

/* Two layers of experts, one in each of two formats. */
static inline void fuzz_daemon_write_model(const char *path)
{
	struct gguf_file f = gf_new(5);

	gf_config(&f, "qwen3moe", 2, 64, 4, 2, "expert_feed_forward_length", 32);
	gf_experts(&f, 0, GF_BF16, GF_BF16, 64, 32, 4);
	gf_experts(&f, 1, GF_Q8_0, GF_Q8_0, 64, 32, 4);
	gf_write(&f, path);
	gf_free(&f);
}

static inline void fuzz_daemon_start(void)
{
	struct fuzz_daemon *d = &fuzz_daemon;
	const char *const argv[] = {"fuzz", "--socket", d->socket, "--threads", "1",         "--spin",
				    "0",    "--pages",  "4k",      "--config",  "/dev/null", NULL};
	struct moe_error err = {0};
	sigset_t before;

	if (d->service)
		return;
	tap_tmp(d->folder, "moe-fuzz-XXXXXX");
	fuzz_check(mkdtemp(d->folder));
	snprintf(d->socket, sizeof d->socket, "%.63s/socket", d->folder);
	snprintf(d->model, sizeof d->model, "%.63s/small.gguf", d->folder);
	fuzz_daemon_write_model(d->model);
	log_open("fuzz", (enum log_level)0);
	optind = 0;
	fuzz_check(config_parse(&d->config, ARRAY_LEN(argv) - 1, (char **)argv, &err) == 0);
	sigprocmask(SIG_SETMASK, NULL, &before);
	fuzz_check(service_new(&d->service, &d->config, NULL, &err) == 0);
	sigprocmask(SIG_SETMASK, &before, NULL); /* the fuzzer ends by signals too */
	atexit(fuzz_daemon_stop);
}

#endif
