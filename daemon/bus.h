/* SPDX-License-Identifier: MIT */
/*
 * bus - the daemon on D-Bus: org.moeexpertd.Manager1, and models, sessions and jobs as objects (its manual page).
 *
 * Law: the reactor's alone, and it never waits for the bus. The bus reads the service, and changes it only by the calls
 * that the socket makes as well. Without a bus, and when it has gone, the daemon serves on: it tries again by itself.
 * What is told to listeners is found by comparing what there is with what was told (bus_note says that something may
 * have changed), so that a slow bus hears less often and not wrongly.
 */
#ifndef DAEMON_BUS_H
#define DAEMON_BUS_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"

#define BUS_NAME "org.moeexpertd" /* of the only daemon; also the prefix of all interfaces and errors */

struct bus;
struct service;

/* For service->config->bus. A bus that is not there is no error, but logged and tried again. -EINVAL: the address
 * cannot be one; -EMFILE, -ENOMEM. In a build without libsystemd *ret stays NULL, with a warning. */
int bus_new(struct bus **ret, struct service *service, struct moe_error *err);
struct bus *bus_free(struct bus *bus); /* takes NULL, returns NULL */

/* Models, sessions or jobs may have changed. Takes NULL. */
void bus_note(struct bus *bus);

/* In each turn of the reactor: tells what has changed, a bounded part of it. True: did something. Takes NULL. */
bool bus_turn(struct bus *bus);

/* Of those who wait for a document (drafts.h), enum moe_query: those who do now get the one that is begun; they get it,
 * a memfd that stays the caller's, or -errno and *err. Both take NULL. */
void bus_begin_document(struct bus *bus, uint32_t what);
void bus_send_document(struct bus *bus, int fd, uint64_t bytes, const struct moe_error *err);

/* How it is with the bus that config asks for: a constant word, and why where that helps, else "". */
void bus_state(const struct service *service, const char **ret_state, const char **ret_why);

#endif
