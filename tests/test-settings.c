/* SPDX-License-Identifier: MIT */
/* settings - the lines of configuration files, their types and places, and which of the system's files count. */
#include "settings/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/tap.h"

static struct settings s;
static struct moe_error err;
static char root[256], warned[4096];

static void warn(const char *text, void *userdata)
{
	const size_t n = strlen(warned);

	snprintf(warned + n, sizeof warned - n, "%s\n", text);
}

static void begin(void)
{
	settings_free(&s);
	settings_init(&s);
	s.warn = warn;
	warned[0] = '\0';
	err.text[0] = '\0';
}

/* Of one text, alone. */
static int parse(const char *text)
{
	begin();
	return settings_parse(&s, "f.conf", text, strlen(text), &err);
}

static bool refused(const char *text, const char *why)
{
	const int r = parse(text);

	if (r == -EINVAL && strcmp(err.text, why) == 0)
		return true;
	printf("# %d, %s\n", r, err.text);
	return false;
}

static uint64_t number(enum setting which)
{
	return s.values[which].number;
}

static const char *origin(enum setting which)
{
	static char to[512];

	return settings_origin(&s, which, to, sizeof to) + (strncmp(to, root, strlen(root)) == 0 ? strlen(root) : 0);
}

static const char *no_level(const char *level)
{
	return strcmp(level, "amx") == 0 ? "not here" : NULL;
}

/* What is well formed, and refused by settings_check. */
static bool unfit(const char *text, const char *why)
{
	const int r = parse(text) < 0 ? 1 : settings_check(&s, no_level, &err);

	if (why ? r == -EINVAL && strcmp(err.text, why) == 0 : r == 0)
		return true;
	printf("# %d, %s\n", r, err.text);
	return false;
}

/* -- one file ----------------------------------------------------------------------------------------------------- */

static void test_defaults(void)
{
	char to[64];

	settings_init(&s);
	ok(number(SETTING_SPIN) == 50 && number(SETTING_SOCKET_MODE) == 0660 && number(SETTING_UID_SESSIONS) == 1024,
	   "fixed defaults are numbers");
	ok(number(SETTING_THREADS) == 0 && number(SETTING_MEMORY_MAX) == 0, "computed ones are 0");
	ok(strcmp(origin(SETTING_SPIN), "default") == 0, "they are from nowhere");
	ok(strcmp(settings_text(&s, SETTING_THREADS, to, 8), "one per") == 0, "words are cut to their room");
	for (int i = 0; i < SETTINGS; i++)
		if (!settings_table[i].preset == !settings_table[i].computed || !settings_table[i].help)
			ok(false, "%s has a default of one kind, and help", settings_table[i].key);
}

static void test_check(void)
{
	ok(unfit("", NULL), "a daemon starts with the defaults");
	ok(unfit("[Daemon]\nMetrics=9464\nBus=unix:path=/b\nBusName=org.moeexpertd.b_2\n[Pool]\nIsa=ref\n", NULL),
	   "and with what is right");
	begin();
	ok(settings_set(&s, SETTING_SOCKET,
			"/a/path/of/a/socket/that/is/so/long/that/the/kernel/has/no/room/for/it/in/"
			"its/address/which/takes/a/hundred/and/seven/bytes",
			&(struct settings_from){.kind = SETTINGS_FROM_OPTION}, &err) == 0 &&
		   settings_check(&s, no_level, &err) == -EINVAL &&
		   strstr(err.text, "bytes': a path of at most 107 bytes expected"),
	   "the kernel has room for so long a path: %s", err.text);
	ok(unfit("[Pool]\nIsa=amx\n", "f.conf:2: Isa=amx: not here"), "a level is asked for");
	ok(unfit("[Daemon]\nMetrics=70000\n",
		 "f.conf:2: Metrics=70000: PORT, ADDRESS:PORT (numbers, IPv6 in brackets) or /PATH expected, e.g. "
		 "127.0.0.1:9464"),
	   "a port is at most 65535");
	ok(unfit("[Daemon]\nBus=foo\n", "f.conf:2: Bus=foo: off, system, user or unix:path=... expected"),
	   "a bus has a name");
	ok(unfit("[Daemon]\nBusName=org.moeexpertd.2\n",
		 "f.conf:2: BusName=org.moeexpertd.2: org.moeexpertd or org.moeexpertd.X expected, X of letters, "
		 "digits and _, not beginning with a digit, 255 bytes in all"),
	   "and the daemon a name there");
}

static void test_types(void)
{
	ok(parse("\xef\xbb\xbf# c\n; c\n\n[Daemon]\n Socket = /a b/c \r\nSocketMode=600\nVerbose=on\n[Models]\n"
		 "MemoryMax=1.5T\nPages=2m\n[Pool]\nThreads=4096\nSpin=0\n") == 0,
	   "all types: %s", err.text);
	ok(strcmp(s.values[SETTING_SOCKET].text, "/a b/c") == 0, "blanks around keys and values are none of them");
	ok(number(SETTING_SOCKET_MODE) == 0600 && number(SETTING_VERBOSE) == 1 &&
		   number(SETTING_MEMORY_MAX) == 3ull << 39 && number(SETTING_PAGES) == 2 &&
		   number(SETTING_THREADS) == 4096 && number(SETTING_SPIN) == 0,
	   "numbers in all bases, bytes, yes, words");
	ok(strcmp(origin(SETTING_THREADS), "f.conf:12") == 0, "where it is from: %s", origin(SETTING_THREADS));
	ok(parse("[Pool]\nThreads=3\nThreads=") == 0 && number(SETTING_THREADS) == 0 && !s.values[SETTING_THREADS].text,
	   "an empty value is the default");
	ok(strcmp(origin(SETTING_THREADS), "f.conf:3") == 0, "and says who has said so");
}

static void test_refusals(void)
{
	ok(refused("[Pool]\nThreads=4097\n", "f.conf:2: Threads=4097: a number from 1 to 4096 expected"), "too many");
	ok(refused("[Pool]\n\nThreads=1x", "f.conf:3: Threads=1x: a number from 1 to 4096 expected"), "not all digits");
	ok(refused("[Pool]\nSpin=-1", "f.conf:2: Spin=-1: a number from 0 to 1000000 expected"), "a sign");
	ok(refused("[Pool]\nSpin=99999999999999999999",
		   "f.conf:2: Spin=99999999999999999999: a number from 0 to 1000000 "
		   "expected"),
	   "more than 64 bits");
	ok(refused("[Daemon]\nSocketMode=0888",
		   "f.conf:2: SocketMode=0888: an octal number from 0000 to 0777 expected"),
	   "not octal");
	ok(refused("[Models]\nMemoryMax=12Q", "f.conf:2: MemoryMax=12Q: bytes expected, e.g. 512M or 1.5T"),
	   "a suffix");
	ok(refused("[Models]\nMemoryMax=0x10", "f.conf:2: MemoryMax=0x10: bytes expected, e.g. 512M or 1.5T"), "0x");
	ok(refused("[Models]\nMemoryMax=9999999T", "f.conf:2: MemoryMax=9999999T: bytes expected, e.g. 512M or 1.5T"),
	   "over 1e18");
	ok(refused("[Models]\nPages=8k", "f.conf:2: Pages=8k: auto, 1g, 2m, thp or 4k expected"), "another word");
	ok(refused("[Models]\nPages=1", "f.conf:2: Pages=1: auto, 1g, 2m, thp or 4k expected"), "the begin of a word");
	ok(refused("[Daemon]\nVerbose=maybe", "f.conf:2: Verbose=maybe: yes or no expected"), "neither yes nor no");
	ok(refused("[Daemon]\nSocket=run/x", "f.conf:2: Socket=run/x: an absolute path expected"), "a relative path");
	ok(refused("Spin=1", "f.conf:1: Spin= before the first [SECTION]"), "no section");
	ok(refused("[Pool]\nSpin 1", "f.conf:2: Spin 1: KEY=VALUE, [SECTION] or a comment (#) expected"), "no =");
	ok(refused("[Pool]\n=1", "f.conf:2: =1: KEY=VALUE, [SECTION] or a comment (#) expected"), "no key");
	ok(refused("[Pool\nSpin=1", "f.conf:1: [Pool: ']' is missing behind the section"), "no ]");
	begin();
	ok(settings_parse(&s, "f.conf", "[Pool]\n\0", 8, &err) == -EINVAL && strstr(err.text, "NUL"), "a NUL byte");
}

static void test_unknown(void)
{
	ok(parse("[Models]\nMemMax=1G\nmemorymax=1G\nThreads=1\nTurbo=1\n[Modles]\nPages=x\n[Pool]\nSpin=7") == 0,
	   "what nobody knows is no error: %s", err.text);
	ok(number(SETTING_SPIN) == 7 && number(SETTING_MEMORY_MAX) == 0, "what is known counts");
	ok(strcmp(warned,
		  "f.conf:2: MemMax= is unknown in section [Models] and passed over; is MemoryMax= of [Models] meant?\n"
		  "f.conf:3: memorymax= is unknown in section [Models] and passed over; is MemoryMax= of [Models] "
		  "meant?\n"
		  "f.conf:4: Threads= is unknown in section [Models] and passed over; is Threads= of [Pool] meant?\n"
		  "f.conf:5: Turbo= is unknown in section [Models] and passed over; expertd.conf(5) has all keys\n"
		  "f.conf:6: section [Modles] is unknown and passed over; is [Models] meant?\n") == 0,
	   "each with its line, and who may be meant");
	if (!strstr(warned, "[Modles]"))
		printf("# %s", warned);
}

static void test_models(void)
{
	const struct settings_from option = {.kind = SETTINGS_FROM_OPTION};
	char text[2048] = "[Models]\n";

	ok(parse("[Models]\nModel=/a\nModel=big:/b:c\n") == 0 && s.n_models == 2, "a list of models: %s", err.text);
	ok(strcmp(s.models[0].path, "/a") == 0 && !s.models[0].name && strcmp(s.models[1].path, "/b:c") == 0 &&
		   strcmp(s.models[1].name, "big") == 0 && s.models[1].line == 3,
	   "with and without a name");
	ok(settings_parse(&s, "g.conf", "[Models]\nModel=\nModel=/d", 24, &err) == 0 && s.n_models == 1,
	   "an empty one throws out those before");
	ok(settings_set(&s, SETTING_MODEL, "rel", &option, &err) == 0 &&
		   settings_set(&s, SETTING_MODEL, "n:/x", &option, &err) == 0 && s.n_models == 2 &&
		   strcmp(s.models[0].path, "rel") == 0 && strcmp(s.models[1].path, "n:/x") == 0,
	   "the command line's, whose names are options, throw out those of files");
	ok(settings_name_model(&s, "y", &err) == 0 && strcmp(s.models[1].name, "y") == 0, "and are named");
	ok(refused("[Models]\nModel=a", "f.conf:2: Model=a: an absolute path, or NAME:PATH, expected") &&
		   refused("[Models]\nModel=a:b", "f.conf:2: Model=a:b: an absolute path, or NAME:PATH, expected"),
	   "relative ones are refused");
	for (int i = 0; i <= SETTINGS_MODELS_MAX; i++)
		strcat(text, "Model=/m\n");
	ok(refused(text, "f.conf:18: Model=/m: at most 16 models can be loaded at the start"), "one too many");
}

/* -- the system's files ------------------------------------------------------------------------------------------- */

static void put(const char *path, const char *text)
{
	char full[512], *at;
	FILE *f;

	snprintf(full, sizeof full, "%s%s", root, path);
	for (at = full + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = '\0';
		mkdir(full, 0755);
	}
	f = fopen(full, "w");
	require(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", full);
}

static void drop(const char *path)
{
	char full[512];

	snprintf(full, sizeof full, "%s%s", root, path);
	require(unlink(full) == 0, "%s", full);
}

static int read_root(void)
{
	begin();
	return settings_read(&s, root, &err);
}

static void test_precedence(void)
{
	ok(read_root() == 0 && s.n_files == 0, "no files at all: the defaults");
	put("/usr/lib/moe-expertd/expertd.conf", "[Pool]\nSpin=1\nThreads=9\n");
	ok(read_root() == 0 && number(SETTING_SPIN) == 1, "of /usr/lib when it is alone");
	put("/run/moe-expertd/expertd.conf", "[Pool]\nSpin=2\n");
	ok(read_root() == 0 && number(SETTING_SPIN) == 2 && number(SETTING_THREADS) == 0, "/run hides it, whole");
	put("/etc/moe-expertd/expertd.conf", "[Pool]\nSpin=3\n");
	ok(read_root() == 0 && number(SETTING_SPIN) == 3 && s.n_files == 1, "/etc hides both");

	put("/usr/lib/moe-expertd/expertd.conf.d/50-a.conf", "[Pool]\nSpin=50\nThreads=50\n");
	put("/etc/moe-expertd/expertd.conf.d/40-b.conf", "[Pool]\nSpin=40\nThreads=40\nIsa=ref\n");
	put("/run/moe-expertd/expertd.conf.d/60-c.conf", "[Pool]\nThreads=60\n");
	put("/run/moe-expertd/expertd.conf.d/70-d", "[Pool]\nThreads=70\n");
	put("/run/moe-expertd/expertd.conf.d/.80.conf", "[Pool]\nThreads=80\n");
	ok(read_root() == 0 && number(SETTING_SPIN) == 50 && number(SETTING_THREADS) == 60 &&
		   number(SETTING_ISA) == 1 && s.n_files == 4,
	   "drop-ins of all folders in the order of their names");
	ok(strcmp(origin(SETTING_SPIN), "/usr/lib/moe-expertd/expertd.conf.d/50-a.conf:2") == 0, "%s",
	   origin(SETTING_SPIN));
	put("/run/moe-expertd/expertd.conf.d/50-a.conf", "[Pool]\nSpin=51\n");
	ok(read_root() == 0 && number(SETTING_SPIN) == 51, "of one name, /run hides /usr/lib");
	put("/etc/moe-expertd/expertd.conf.d/50-a.conf", "");
	ok(read_root() == 0 && number(SETTING_SPIN) == 40, "and an empty one of /etc both");
	drop("/etc/moe-expertd/expertd.conf.d/50-a.conf");
	{
		char link[512];

		snprintf(link, sizeof link, "%s/etc/moe-expertd/expertd.conf.d/50-a.conf", root);
		require(symlink("/dev/null", link) == 0, "a link to /dev/null");
	}
	ok(read_root() == 0 && number(SETTING_SPIN) == 40, "as a link to /dev/null does");
	put("/etc/moe-expertd/expertd.conf.d/90-e.conf", "[Pool]\nThreads=no\n");
	ok(read_root() == -EINVAL && strstr(err.text, "/etc/moe-expertd/expertd.conf.d/90-e.conf:2: Threads=no: "),
	   "a wrong drop-in is an error: %s", err.text);
	drop("/etc/moe-expertd/expertd.conf.d/90-e.conf");
}

static void test_files(void)
{
	char path[512];

	begin();
	snprintf(path, sizeof path, "%s/etc", root);
	ok(settings_read_file(&s, path, &err) == -EINVAL && strstr(err.text, "a file expected"), "a folder: %s",
	   err.text);
	snprintf(path, sizeof path, "%s/none", root);
	ok(settings_read_file(&s, path, &err) == -ENOENT && strstr(err.text, path), "not there: %s", err.text);
	snprintf(path, sizeof path, "%s/pipe", root);
	require(mkfifo(path, 0600) == 0, "a pipe");
	ok(settings_read_file(&s, path, &err) == -EINVAL, "a pipe is not waited for: %s", err.text);
	ok(settings_read_file(&s, "/dev/zero", &err) == -EINVAL, "what never ends is not read: %s", err.text);
	ok(settings_read_file(&s, "/dev/null", &err) == 0, "/dev/null is an empty file");
	snprintf(path, sizeof path, "%s/large", root);
	require(close(creat(path, 0600)) == 0 && truncate(path, SETTINGS_FILE_MAX + 1) == 0, "a large one");
	ok(settings_read_file(&s, path, &err) == -EFBIG, "what is too large is not read: %s", err.text);
	put("/own.conf", "[Pool]\nSpin=5\n");
	snprintf(path, sizeof path, "%s/own.conf", root);
	setenv("MOE_EXPERTD_CONFIG", path, 1);
	begin();
	ok(settings_load(&s, NULL, "", &err) == 0 && number(SETTING_SPIN) == 5, "$MOE_EXPERTD_CONFIG names one");
	begin();
	ok(settings_load(&s, "/dev/null", "", &err) == 0 && number(SETTING_SPIN) == 50, "a name goes before it");
	begin();
	ok(settings_load(&s, NULL, root, &err) == 0 && number(SETTING_SPIN) == 40, "and a root");
	unsetenv("MOE_EXPERTD_CONFIG");
}

int main(void)
{
	char command[512];

	tap_tmp(root, "moe-settings.XXXXXX");
	require(mkdtemp(root), "a folder");
	test_defaults();
	test_check();
	test_types();
	test_refusals();
	test_unknown();
	test_models();
	test_precedence();
	test_files();
	settings_free(&s);
	snprintf(command, sizeof command, "rm -r '%s'", root);
	return system(command) == 0 ? tap_done() : 1;
}
