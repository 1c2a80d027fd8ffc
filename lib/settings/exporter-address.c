/* SPDX-License-Identifier: MIT */
#include "settings/exporter-address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/error.h"

#define HOST_BYTES INET6_ADDRSTRLEN

static bool parse_port(uint16_t *ret, const char *text)
{
	uint32_t port = 0;

	if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 5)
		return false;
	for (; *text; text++)
		port = port * 10 + (uint32_t)(*text - '0');
	*ret = htons((uint16_t)port);
	return port <= UINT16_MAX;
}

static int parse_path(struct exporter_address *ret, const char *text, struct moe_error *err)
{
	struct sockaddr_un *address = (struct sockaddr_un *)&ret->sock;

	if (strlen(text) >= sizeof address->sun_path)
		return moe_error_set(err, -EINVAL, "a path of at most %zu bytes expected",
				     sizeof address->sun_path - 1);
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, text, strlen(text) + 1);
	ret->bytes = sizeof *address;
	ret->local = true;
	return 0;
}

static bool parse_host(struct exporter_address *ret, const char *host, uint16_t port)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&ret->sock;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&ret->sock;

	if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = port;
		ret->bytes = sizeof *v4;
		ret->local = ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
		return true;
	}
	memset(&ret->sock, 0, sizeof ret->sock);
	if (inet_pton(AF_INET6, host, &v6->sin6_addr) != 1)
		return false;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = port;
	ret->bytes = sizeof *v6;
	ret->local = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
	return true;
}

int exporter_address_parse(struct exporter_address *ret, const char *text, struct moe_error *err)
{
	struct exporter_address address = {0};
	const char *colon = strrchr(text, ':'), *host = colon ? text : "localhost";
	size_t length = colon ? (size_t)(colon - text) : strlen(host);
	char copy[HOST_BYTES];
	bool v6 = false;
	uint16_t port;
	int r;

	if (*text == '/') {
		r = parse_path(&address, text, err);
		if (r == 0)
			*ret = address;
		return r;
	}
	if (length > 2 && host[0] == '[' && host[length - 1] == ']') {
		v6 = true;
		host++;
		length -= 2;
	}
	if (length < sizeof copy)
		snprintf(copy, sizeof copy, "%.*s", (int)length, host);
	if (length >= sizeof copy || !parse_port(&port, colon ? colon + 1 : text) ||
	    (strchr(copy, ':') != NULL) != v6 || !parse_host(&address, copy, port))
		return moe_error_set(
			err, -EINVAL,
			"PORT, ADDRESS:PORT (numbers, IPv6 in brackets) or /PATH expected, e.g. 127.0.0.1:9464");
	*ret = address;
	return 0;
}
