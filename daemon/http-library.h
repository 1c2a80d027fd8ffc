/* SPDX-License-Identifier: MIT */
/*
 * http-library - libmicrohttpd, of a daemon that was asked for metrics.
 *
 * Law: it is loaded then and not before. It comes with GnuTLS and its libraries, for which everybody would wait when a
 * daemon is started again after its death (docs/decisions/0107).
 */
#ifndef DAEMON_HTTP_LIBRARY_H
#define DAEMON_HTTP_LIBRARY_H

#include <microhttpd.h>

#include "moe-error.h"

#define HTTP_LIBRARY_FUNCTIONS(X)                                                                                      \
	X(MHD_add_response_header)                                                                                     \
	X(MHD_create_response_from_buffer)                                                                             \
	X(MHD_destroy_response)                                                                                        \
	X(MHD_queue_response)                                                                                          \
	X(MHD_start_daemon)                                                                                            \
	X(MHD_stop_daemon)

struct http_library {
#define HTTP_LIBRARY_MEMBER(function) __typeof__(function) *function;
	HTTP_LIBRARY_FUNCTIONS(HTTP_LIBRARY_MEMBER)
#undef HTTP_LIBRARY_MEMBER
};

/* It stays until the process ends. -ENOENT: it is not there, or is another one. */
int http_library_load(struct http_library *ret, struct moe_error *err);

#endif
