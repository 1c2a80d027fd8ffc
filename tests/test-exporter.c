/* SPDX-License-Identifier: MIT */
/* exporter - where --metrics listens, by what is written; and what a build without libmicrohttpd says of it. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/exporter.h"
#include "tests/tap.h"

/* "FAMILY ADDRESS PORT local|open", or "" where it is refused. */
static const char *address_of(const char *text)
{
	static char name[200];
	char host[INET6_ADDRSTRLEN] = "";
	struct exporter_address a;
	struct moe_error err = {0};
	uint16_t port = 0;

	memset(&a, 0xee, sizeof a);
	if (exporter_address_parse(&a, text, &err) < 0)
		return strstr(err.text, "expected") ? "" : "refused without a reason";
	if (a.sock.ss_family == AF_UNIX) {
		snprintf(name, sizeof name, "unix %s %s", ((struct sockaddr_un *)&a.sock)->sun_path,
			 a.local ? "local" : "open");
		return name;
	}
	if (a.sock.ss_family == AF_INET) {
		struct sockaddr_in *v4 = (struct sockaddr_in *)&a.sock;

		inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
		port = ntohs(v4->sin_port);
	} else {
		struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a.sock;

		inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
		port = ntohs(v6->sin6_port);
	}
	snprintf(name, sizeof name, "%s %s %u %s", a.sock.ss_family == AF_INET ? "v4" : "v6", host, port,
		 a.local ? "local" : "open");
	return name;
}

static void test_addresses(void)
{
	static const char *const cases[][2] = {
		{"9464", "v4 127.0.0.1 9464 local"},
		{"0", "v4 127.0.0.1 0 local"},
		{"localhost:1", "v4 127.0.0.1 1 local"},
		{"127.0.0.9:65535", "v4 127.0.0.9 65535 local"},
		{"[::1]:9464", "v6 ::1 9464 local"},
		{"0.0.0.0:9464", "v4 0.0.0.0 9464 open"},
		{"10.1.2.3:80", "v4 10.1.2.3 80 open"},
		{"128.0.0.1:80", "v4 128.0.0.1 80 open"},
		{"[::]:9464", "v6 :: 9464 open"},
		{"/run/moe-expertd/metrics", "unix /run/moe-expertd/metrics local"},
		{"/a:1", "unix /a:1 local"},
		{"", ""},
		{"65536", ""},
		{"999999999999", ""},
		{"-1", ""},
		{"9464 ", ""},
		{":9464", ""},
		{"localhost", ""},
		{"localhost:", ""},
		{"example.org:80", ""},
		{"::1:9464", ""},
		{"[127.0.0.1]:80", ""},
		{"[::1]", ""},
		{"[]:1", ""},
		{"1.2.3.4.5:1", ""},
	};
	char path[200] = "/";

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		ok(strcmp(address_of(cases[i][0]), cases[i][1]) == 0, "'%s' is %s", cases[i][0],
		   *cases[i][1] ? cases[i][1] : "refused");
	memset(path + 1, 'x', 107);
	ok(!*address_of(path), "a path of 108 bytes is refused");
	path[107] = '\0';
	ok(strncmp(address_of(path), "unix /x", 7) == 0, "one of 107 is not");
	memset(path, '1', 150);
	path[150] = '\0';
	ok(!*address_of(path), "an endless number is refused");
}

static void test_absent(void)
{
	const struct exporter_address address = {0};
	struct exporter *e = NULL;
	struct moe_error err = {0};

	ok(exporter_new(&e, &address, 0600, NULL, &err) == -ENOSYS && !e && strstr(err.text, "libmicrohttpd"),
	   "without libmicrohttpd: %s", err.text);
	ok(!exporter_wants(NULL) && !exporter_free(NULL, false), "and nobody wants anything");
}

int main(void)
{
	test_addresses();
	test_absent();
	return tap_done();
}
