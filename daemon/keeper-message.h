/* SPDX-License-Identifier: MIT */
/*
 * keeper-message - what a daemon tells its keeper, in the words of sd_notify(3).
 *
 * Law: a message is whole, and the kernel says who sent it, or it is nobody's. What is kept of its descriptors is
 * copied; those that came are closed with it, whatever it says.
 */
#ifndef DAEMON_KEEPER_MESSAGE_H
#define DAEMON_KEEPER_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/keeper-store.h"

#define KEEPER_MESSAGE_BYTES 4096
#define KEEPER_MESSAGE_FDS_MAX 253 /* SCM_MAX_FD */

struct keeper_message {
	pid_t sender; /* 0: nobody */
	int fds[KEEPER_MESSAGE_FDS_MAX];
	uint32_t n_fds;
	char text[KEEPER_MESSAGE_BYTES];
};

/* Waits for nothing. False: none is there, and nothing is to be closed. The socket has SO_PASSCRED. */
bool keeper_message_receive(struct keeper_message *message, int sock);

enum keeper_word { KEEPER_READY = 1, KEEPER_WATCHDOG = 2 };

/* Does to the store what the sender asks for, once: the text is cut up by it. What it says beside that: READY=1,
 * WATCHDOG=1. */
unsigned keeper_message_obey(struct keeper_message *message, struct keeper_store *store);

void keeper_message_close(struct keeper_message *message);

#endif
