/* SPDX-License-Identifier: MIT */
/* The safetensors header: what is taken, what is refused and in which words, and that no bytes at all can crash it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "model/model.h"
#include "tests/tap.h"

/* A tensor of 4 x 2 BF16, 16 bytes. */
#define ONE "\"a\":{\"dtype\":\"BF16\",\"shape\":[4,2],\"data_offsets\":[0,16]}"
#define TWO "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}"

struct header_case {
	const char *what;
	const char *header;
	uint64_t data; /* bytes behind the header */
	int code;      /* 0: taken */
	const char *word;
};

static const struct header_case cases[] = {
	{"one tensor", "{" ONE "}", 16, 0, ""},
	{"two tensors and metadata", "{\"__metadata__\":{\"format\":\"pt\"}," TWO "," ONE "}", 24, 0, ""},
	{"padding behind the header", "{" ONE "}       ", 16, 0, ""},
	{"no tensors", "{}", 0, 0, ""},
	{"a scalar", "{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 0, ""},
	{"an empty tensor between others",
	 "{" ONE ",\"z\":{\"dtype\":\"I8\",\"shape\":[0,7],\"data_offsets\":[16,16]}," TWO "}", 24, 0, ""},
	{"eight dimensions", "{\"s\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[0,3]}}", 3, 0, ""},

	{"an array", "[" ONE "]", 16, -EINVAL, "'{'"},
	{"a blank first", " {" ONE "}", 16, -EINVAL, "'{'"},
	{"one byte", "{", 0, -EINVAL, "at least 2"},
	{"cut JSON", "{" ONE, 16, -EINVAL, "not valid JSON"},
	{"text behind the object", "{" ONE "}x", 16, -EINVAL, "not valid JSON"},
	{"a second object", "{" ONE "}{}", 16, -EINVAL, "not valid JSON"},
	{"a trailing comma", "{" ONE ",}", 16, -EINVAL, "not valid JSON"},
	{"a byte that is no UTF-8", "{\"\xff\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -EINVAL,
	 "not valid JSON"},
	{"a zero byte in a name", "{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -EINVAL,
	 "not valid JSON"},
	{"the same name twice", "{" ONE "," ONE "}", 16, -EINVAL, "duplicate"},
	{"the same field twice", "{\"a\":{\"dtype\":\"I8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	 -EINVAL, "duplicate"},
	{"an integer beyond 64 bits",
	 "{\"a\":{\"dtype\":\"I8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, -EINVAL, "integer"},

	{"metadata that is a string", "{\"__metadata__\":\"pt\"," ONE "}", 16, -EINVAL, "__metadata__"},
	{"metadata that holds a number", "{\"__metadata__\":{\"v\":1}," ONE "}", 16, -EINVAL, "expected a string"},
	{"an empty name", "{\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EINVAL, "name"},
	{"a line break in a name", "{\"a\\nb\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EINVAL,
	 "control character"},
	{"a tensor that is a number", "{\"a\":1}", 0, -EINVAL, "expected an object"},

	{"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EINVAL, "dtype"},
	{"a dtype that is a number", "{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EINVAL,
	 "expected a string"},
	{"an unknown dtype", "{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, -ENOTSUP,
	 "unknown dtype: found the string \"F4\""},
	{"a dtype in small letters", "{\"a\":{\"dtype\":\"bf16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2, -ENOTSUP,
	 "unknown dtype"},
	{"no shape", "{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,1]}}", 1, -EINVAL, "shape"},
	{"a shape that is a number", "{\"a\":{\"dtype\":\"I8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, -EINVAL,
	 "shape"},
	{"nine dimensions", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
	 -EINVAL, "at most 8"},
	{"a negative size", "{\"a\":{\"dtype\":\"I8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, -EINVAL, "found -1"},
	{"a size that is a fraction", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, -EINVAL,
	 "shape"},
	{"a product that wraps to 0",
	 "{\"a\":{\"dtype\":\"I8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, -EINVAL,
	 "overflows"},
	{"bytes that wrap to 0", "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}",
	 0, -EINVAL, "overflows"},
	{"no offsets", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1]}}", 1, -EINVAL, "data_offsets"},
	{"one offset", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1]}}", 1, -EINVAL, "two integers"},
	{"offsets that are strings", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[\"0\",\"1\"]}}", 1,
	 -EINVAL, "two integers"},
	{"a negative offset", "{\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[-1,1]}}", 1, -EINVAL,
	 "out of range"},
	{"an end before the begin", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, -EINVAL,
	 "out of range"},
	{"an end behind the data", "{" ONE "}", 15, -EINVAL, "truncated"},
	{"an end at the edge of 63 bits",
	 "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[9223372036854775806,9223372036854775807]}}", 1,
	 -EINVAL, "out of range"},
	{"fewer bytes than the shape", "{\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, -EINVAL,
	 "found 4 bytes; expected 8"},
	{"a field of another kind", "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1],\"strides\":[1]}}",
	 1, -EINVAL, "found 4 fields"},

	{"an overlap", "{" ONE ",\"c\":{\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[15,23]}}", 23, -EINVAL,
	 "overlaps"},
	{"the same bytes twice", "{" ONE ",\"c\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[0,16]}}", 16,
	 -EINVAL, "overlaps"},
	{"a hole between two", "{" ONE ",\"c\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[17,18]}}", 18, -EINVAL,
	 "hole"},
	{"a hole at the start", "{\"c\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, -EINVAL, "hole"},
	{"data that no tensor owns", "{" ONE "}", 17, -EINVAL, "belong to no tensor"},
	{"data without tensors", "{}", 1, -EINVAL, "belong to no tensor"},
};

static int parse(const char *header, uint64_t bytes, uint64_t data, struct tensor **tensors, uint64_t *n,
		 struct moe_error *err)
{
	return safetensors_parse("x.safetensors", header, bytes, 8 + bytes + data, 7, tensors, n, err);
}

static void test_cases(void)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct header_case *c = &cases[i];
		struct moe_error err = {0};
		struct tensor *tensors = NULL;
		uint64_t n = 0;
		int r = parse(c->header, strlen(c->header), c->data, &tensors, &n, &err);

		ok(r == c->code && (r == 0 || (err.code == r && n == 0 && tensors == NULL &&
					       strstr(err.text, "x.safetensors") && strstr(err.text, c->word))),
		   "%s: %d, %s", c->what, r, r ? err.text : "taken");
		tensors_free(tensors, n);
	}
}

static void test_result(void)
{
	static const char header[] = "{" TWO "," ONE "}";
	struct tensor *tensors = NULL;
	struct moe_error err = {0};
	uint64_t n = 0;

	require(parse(header, strlen(header), 24, &tensors, &n, &err) == 0, "two tensors %s", err.text);
	require(n == 2, "both are there");
	ok(strcmp(tensors[0].name, "a") == 0 && tensors[0].type == TENSOR_BF16 && tensors[0].n_dims == 2 &&
		   tensors[0].dims[0] == 4 && tensors[0].dims[1] == 2 && tensors[0].bytes == 16 &&
		   tensors[0].offset == 8 + strlen(header) && tensors[0].shard == 7,
	   "name, type, shape, bytes, shard and the offset from the start of the file");
	ok(strcmp(tensors[1].name, "b") == 0 && tensors[1].offset == 8 + strlen(header) + 16, "the second behind it");

	ok(parse("{" ONE "}", strlen("{" ONE "}"), 16, &tensors, &n, NULL) == 0 && n == 3,
	   "appends, without an error text");
	ok(parse("{" ONE "}", strlen("{" ONE "}"), 17, &tensors, &n, &err) == -EINVAL && n == 3 &&
		   strcmp(tensors[2].name, "a") == 0,
	   "a failure leaves what was there");
	tensors_free(tensors, n);
}

/* `count` one-byte tensors, or one name of `name` bytes. */
static char *big_header(unsigned count, unsigned name)
{
	char *text = NULL, long_name[512];
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	memset(long_name, 'n', sizeof long_name);
	for (unsigned i = 0; i < count; i++)
		fprintf(f, "%s\"%.*s%u\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[%u,%u]}", i ? "," : "{",
			(int)name, long_name, i, i, i + 1);
	fputc('}', f);
	fclose(f);
	return text;
}

static void check_limit(const char *what, unsigned count, unsigned name, int code, const char *word)
{
	char *header = big_header(count, name);
	struct tensor *tensors = NULL;
	struct moe_error err = {0};
	uint64_t n = 0;
	int r = parse(header, strlen(header), count, &tensors, &n, &err);

	ok(r == code && n == (code ? 0 : count) && (!code || strstr(err.text, word)), "%s: %d, %s", what, r,
	   r ? err.text : "taken");
	tensors_free(tensors, n);
	free(header);
}

static void test_limits(void)
{
	static char deep[8192];
	struct tensor *tensors = NULL;
	struct moe_error err = {0};
	uint64_t n = 0;

	check_limit("as many tensors as allowed", SAFETENSORS_TENSORS_MAX, 1, 0, "");
	check_limit("one tensor too many", SAFETENSORS_TENSORS_MAX + 1, 1, -E2BIG, "at most 65536");
	check_limit("a name of 255 bytes", 1, 254, 0, "");
	check_limit("a name of 256 bytes", 1, 255, -E2BIG, "1 to 255");

	ok(safetensors_parse("x", "{}", (uint64_t)SAFETENSORS_HEADER_MAX + 1, UINT64_MAX, 0, &tensors, &n, &err) ==
			   -E2BIG &&
		   strstr(err.text, "at most 16777216"),
	   "a header above 16 MiB is refused unread");
	ok(safetensors_parse("x", "{}", 2, 9, 0, &tensors, &n, &err) == -EINVAL, "a header behind the end of the file");
	memset(deep, '[', sizeof deep);
	memcpy(deep, "{\"a\":", 5);
	ok(parse(deep, sizeof deep, 0, &tensors, &n, &err) == -EINVAL && n == 0, "deep nesting: %s", err.text);
}

static void write_file(const char *path, uint64_t length, const char *header, size_t header_bytes, uint64_t data)
{
	FILE *f = fopen(path, "w");

	require(f, "%s", path);
	for (int i = 0; i < 8; i++)
		fputc((int)(length >> (8 * i) & 0xff), f);
	fwrite(header, 1, header_bytes, f);
	for (uint64_t i = 0; i < data; i++)
		fputc(0, f);
	fclose(f);
}

static void check_file(const char *what, const char *path, int code, const char *word)
{
	struct tensor *tensors = NULL;
	struct moe_error err = {0};
	uint64_t n = 0, bytes = 77;
	int r = safetensors_read(path, 0, &bytes, &tensors, &n, &err);

	ok(r == code && (r == 0 ? n == 1 && bytes == 8 + sizeof("{" ONE "}") - 1 + 16
				: n == 0 && bytes == 77 && strstr(err.text, word) && strstr(err.text, path)),
	   "%s: %d, %s", what, r, r ? err.text : "taken");
	tensors_free(tensors, n);
}

static void test_files(void)
{
	static const char header[] = "{" ONE "}";
	const size_t bytes = sizeof header - 1;
	char folder[TAP_TMP], path[128], link_path[128];

	require(mkdtemp(tap_tmp(folder, "test-safetensors.XXXXXX")), "a folder");
	snprintf(path, sizeof path, "%s/a.safetensors", folder);
	snprintf(link_path, sizeof link_path, "%s/link.safetensors", folder);

	write_file(path, bytes, header, bytes, 16);
	check_file("a file", path, 0, "");
	require(symlink("a.safetensors", link_path) == 0, "a symbolic link");
	check_file("a symbolic link to it", link_path, 0, "");
	write_file(path, bytes, header, bytes, 15);
	check_file("a file cut in its data", path, -EINVAL, "truncated");
	write_file(path, bytes, header, bytes - 1, 0);
	check_file("a file cut in its header", path, -EINVAL, "truncated");
	write_file(path, UINT64_MAX, header, bytes, 16);
	check_file("a length of 2^64 - 1", path, -E2BIG, "at most");
	write_file(path, 0, header, bytes, 16);
	check_file("a length of 0", path, -EINVAL, "at least 2");
	write_file(path, __builtin_bswap64(bytes), header, bytes, 16);
	check_file("a length in the wrong byte order", path, -E2BIG, "at most");
	require(truncate(path, 7) == 0, "seven bytes");
	check_file("a file of seven bytes", path, -EINVAL, "truncated");
	require(truncate(path, 0) == 0, "no bytes");
	check_file("an empty file", path, -EINVAL, "truncated");
	unlink(path);
	check_file("a link that leads nowhere", link_path, -ENOENT, "");
	unlink(link_path);
	check_file("no file", path, -ENOENT, "No such file");
	require(mkfifo(path, 0600) == 0, "a FIFO");
	check_file("a FIFO does not hold us up", path, -EINVAL, "not a regular file");
	unlink(path);
	check_file("a folder", folder, -EINVAL, "not a regular file");
	rmdir(folder);
}

static void test_types(void)
{
	ok(tensor_type_bytes(TENSOR_F64) == 8 && tensor_type_bytes(TENSOR_BF16) == 2 &&
		   tensor_type_bytes(TENSOR_F8_E5M2) == 1 && tensor_type_bytes(TENSOR_BOOL) == 1,
	   "sizes of types");
	ok(strcmp(tensor_type_name(TENSOR_F8_E4M3), "F8_E4M3") == 0 &&
		   strcmp(tensor_type_name(TENSOR_BOOL), "BOOL") == 0,
	   "names of types");
}

/* One change: a byte, a digit, a piece left out, a piece twice, a piece moved, a cut. */
static size_t mutate(char *text, size_t bytes, size_t room, unsigned long long *state)
{
	static const char signs[] = "0123456789-.eE{}[],:\"\\ \n";
	size_t at = bytes ? tap_random(state) % bytes : 0, n = bytes - at;

	n = n ? tap_random(state) % MIN(n, 40) : 0;
	switch (tap_random(state) % 6) {
	case 0:
		text[at] = (char)tap_random(state);
		break;
	case 1:
	case 2:
		text[at] = signs[tap_random(state) % (sizeof signs - 1)];
		break;
	case 3:
		memmove(text + at, text + at + n, bytes - at - n);
		bytes -= n;
		break;
	case 4:
		if (bytes + n > room)
			break;
		memmove(text + at + n, text + at, bytes - at);
		bytes += n;
		break;
	default:
		if (tap_random(state) % 8 == 0)
			bytes = at;
		break;
	}
	return bytes;
}

/* What is taken must be whole: in order, without a gap, up to the end of the file. */
static bool covers(const struct tensor *tensors, uint64_t n, uint64_t begin, uint64_t end)
{
	for (uint64_t i = 0; i < n; i++) {
		uint64_t bytes = tensor_type_bytes(tensors[i].type);

		for (uint32_t d = 0; d < tensors[i].n_dims; d++)
			bytes *= tensors[i].dims[d];
		if (tensors[i].offset != begin || tensors[i].bytes != bytes)
			return false;
		begin += bytes;
	}
	return begin == end;
}

static void test_mutations(void)
{
	static const char header[] =
		"{\"__metadata__\":{\"format\":\"pt\"}," ONE "," TWO
		",\"model.layers.0.mlp.experts.0.down_proj.weight\":{\"dtype\":\"F16\",\"shape\":[2,3],"
		"\"data_offsets\":[24,36]}}   ";
	unsigned long long state = tap_seed(), taken = 0, wrong = 0, silent = 0;

	for (int i = 0; i < 20000; i++) {
		size_t room = 2 * sizeof header, bytes = sizeof header - 1;
		char *text = malloc(room), *exact;
		struct tensor *tensors = NULL;
		struct moe_error err = {0};
		uint64_t n = 0;
		int changes = 1 + (int)(tap_random(&state) % 3), r;

		memcpy(text, header, bytes);
		while (changes--)
			bytes = mutate(text, bytes, room, &state);
		exact = malloc(bytes + 1); /* so that a read behind the header is a fault under ASan */
		memcpy(exact, text, bytes);
		exact = realloc(exact, bytes ? bytes : 1);
		r = parse(exact, bytes, 36, &tensors, &n, &err);
		if (r == 0) {
			taken++;
			wrong += !covers(tensors, n, 8 + bytes, 8 + bytes + 36);
		} else {
			silent += err.code != r || err.text[0] == '\0' || strchr(err.text, '\n') || n || tensors;
		}
		tensors_free(tensors, n);
		free(exact);
		free(text);
	}
	ok(wrong == 0, "20,000 mutations: the %llu that are taken cover the file", taken);
	ok(silent == 0, "the others are refused in one line each");
	ok(taken > 0 && taken < 15000, "and both happen");
}

int main(void)
{
	test_cases();
	test_result();
	test_limits();
	test_files();
	test_types();
	test_mutations();
	return tap_done();
}
