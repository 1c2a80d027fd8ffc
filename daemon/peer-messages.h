/* SPDX-License-Identifier: MIT */
/*
 * peer-messages - what a connection may be asked (moe_proto.h), and what it answers.
 *
 * Law: a message is checked in full before anything is done. It has one answer: what it asked for, an error with a code
 * and a line, or later ones where it takes time. A peer that does not read its answers is closed; nobody waits for it.
 */
#ifndef DAEMON_PEER_MESSAGES_H
#define DAEMON_PEER_MESSAGES_H

#include "daemon/peer.h"

/* NULL, or how the message breaks the protocol: then nothing of it is believed. */
const char *peer_check(const struct peer *peer, const struct moe_msg *msg, size_t bytes, size_t n_fds);

/* Does and answers what a message asks for that was checked; its descriptors stay the caller's. 0, or -errno with *err,
 * which the caller answers. May close the peer. */
int peer_answer(struct peer *peer, const void *message, const int *fds, struct moe_error *err);

/* To the peer that has given slots in a GPU's memory: they can be pushed into, or (r < 0) not. */
void peer_device_opened(struct peer *peer, int r, const struct moe_error *err);

/* To the peer that waits for its session, or an arena, to be kept, and is listed as such no more: that it is. */
void peer_kept(struct peer *peer);

/* To the peer that asked for a load. */
void peer_send_progress(struct peer *peer, uint64_t done, uint64_t total, uint64_t elapsed_ns, uint64_t eta_ns);
void peer_send_loaded(struct peer *peer, const struct moe_manifest *manifest, uint64_t bytes, uint64_t elapsed_ns);
void peer_send_traced(struct peer *peer, const struct moe_msg_traced *traced);
/* To one that waits for a document: that, which is on its account until it is given the next one; where there is none
 * (fd -errno), *err. */
void peer_send_document(struct peer *peer, struct handout *handout, const struct moe_error *err);
/* It is off its account. */
void peer_forget_document(struct peer *peer);
void peer_send_error(struct peer *peer, int code, const char *text);
/* The same of a daemon that leaves: the connection stays, whether or not it arrives. */
void peer_send_goodbye(struct peer *peer, int code, const char *text);

/* Whether answers wait in the socket to be read. False where the kernel does not tell. */
bool peer_has_unread(const struct peer *peer);

#endif
