#!/bin/sh
# SPDX-License-Identifier: MIT
#
# install - what `meson install` puts down is complete and can be used by a stranger's C and C++, from the installed
# tree alone: programs, library, headers, pkg-config, manual pages, and the example of libmoe-expert(3).
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

tree=$dir/tree
page=docs/man/libmoe-expert.3

for tool in meson pkg-config cc nm readelf; do
	command -v "$tool" >/dev/null 2>&1 || skip_all "$tool is not installed"
done

# same FILE FILE NAME: both lists, in any order, say the same.
same() {
	sort "$1" >"$1.sorted"
	sort "$2" >"$2.sorted"
	diff "$1.sorted" "$2.sorted" >"$dir/diff"
	ok $? "$3" "$dir/diff"
}

# -- what is there ------------------------------------------------------------------------------------------------

DESTDIR=$tree meson install --no-rebuild -C "$build" >"$dir/log" 2>&1
require $? 'meson install' "$dir/log"

pc=$(find "$tree" -name moe-expert.pc)
[ -f "$pc" ]
require $? 'one moe-expert.pc'
pkgconfig=$(dirname -- "$pc")
variable() { PKG_CONFIG_PATH=$pkgconfig pkg-config --variable="$1" moe-expert; }
prefix=$tree$(variable prefix)
libdir=$tree$(variable libdir)
includedir=$tree$(variable includedir)
version=$(PKG_CONFIG_PATH=$pkgconfig pkg-config --modversion moe-expert)
LD_LIBRARY_PATH=$libdir
PATH=$prefix/bin:$PATH
export LD_LIBRARY_PATH PATH

ls "$prefix/bin" >"$dir/programs"
printf '%s\n' moe-bench moe-expertd moe-worker moectl >"$dir/expected"
same "$dir/programs" "$dir/expected" 'the programs are there, and no others'
for program in moe-bench moe-expertd moe-worker moectl; do
	is "$("$prefix/bin/$program" --version 2>&1)" "$program $version" "$program runs from there"
	ls "$prefix"/share/man/man[18]/"$program".[18] >/dev/null 2>&1
	ok $? "$program has a manual page"
done

(cd "$prefix/share/man" && find . -type f | sed 's,.*/,,') >"$dir/pages"
(cd docs/man && ls) >"$dir/expected"
same "$dir/pages" "$dir/expected" 'all manual pages are there'
(cd "$prefix/share/man/man3" && find . -follow -type f -name 'moe_*.3' | sed 's,.*/,,; s,\.3$,,') >"$dir/pages"
sed -n 's/^\t\(moe_[a-z_]*\);/\1/p' lib/libmoe-expert.map >"$dir/expected"
same "$dir/pages" "$dir/expected" 'each function of the library has a page, or a link to one, and nothing else has'
if command -v man >/dev/null 2>&1; then
	MANPATH=$prefix/share/man man -w moe_wait >"$dir/said" 2>&1 && grep -q '/moe_submit\.3$' "$dir/said"
	ok $? 'man moe_wait finds the page of its group' "$dir/said"
else
	skip 'man moe_wait: man is not installed'
fi

cmp -s share/grafana/moe-expertd.json "$prefix/share/moe-expertd/grafana/moe-expertd.json"
ok $? 'the dashboard is there'

for file in bash-completion/completions/moectl zsh/site-functions/_moectl fish/vendor_completions.d/moectl.fish; do
	grep -q 'moectl completion' "$prefix/share/$file"
	ok $? "$file is there"
done

ls "$includedir" >"$dir/headers"
printf '%s\n' moe-error.h moe-expert.h >"$dir/expected"
same "$dir/headers" "$dir/expected" 'the public headers are there, and no others'

if readelf -d "$prefix/bin/moe-expertd" | grep -q 'NEEDED.*libsystemd'; then
	cmp -s dbus/org.moeexpertd.conf "$prefix/share/dbus-1/system.d/org.moeexpertd.conf" &&
		cmp -s dbus/org.moeexpertd.policy "$prefix/share/polkit-1/actions/org.moeexpertd.policy"
	ok $? 'what the bus and polkit allow is there'
else
	skip 'this daemon was built without libsystemd: it is on no bus'
fi

# -- the library --------------------------------------------------------------------------------------------------

ls "$libdir" >"$dir/libraries"
printf '%s\n' libmoe-expert.a libmoe-expert.so libmoe-expert.so.1 libmoe-expert.so.1.0.0 pkgconfig >"$dir/expected"
same "$dir/libraries" "$dir/expected" 'the shared and the static library are there'
is "$(readelf -d "$libdir/libmoe-expert.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" libmoe-expert.so.1 'the soname'
readelf -d "$libdir/libmoe-expert.so" "$prefix"/bin/* | grep -E 'R(UN)?PATH' >"$dir/rpath"
[ ! -s "$dir/rpath" ]
ok $? 'nothing installed looks for libraries in the build folder' "$dir/rpath"

sed -n 's/^\t\(moe_[a-z_]*\);/\1/p' lib/libmoe-expert.map >"$dir/functions"
nm -D --defined-only "$libdir/libmoe-expert.so" >"$dir/nm"
# The version of the symbols is a symbol itself, of type A.
awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' "$dir/nm" >"$dir/exported"
same "$dir/exported" "$dir/functions" 'the shared library exports what the map lists, and nothing else'

# -- consumers ----------------------------------------------------------------------------------------------------

# Plain C and C++ alike: takes the address of every function, and opens a socket that does not exist.
{
	echo '#include <moe-expert.h>'
	echo '#include <stdio.h>'
	echo 'typedef void (*function)(void);'
	echo 'static const function all[] = {'
	sed 's/.*/	(function)&,/' "$dir/functions"
	echo '};'
	cat <<-'END'
		int main(int argc, char **argv)
		{
			struct moe_client *client = NULL;
			struct moe_error err;
			int r = moe_open(&client, argv[argc - 1], &err);

			printf("%d %d %d %s\n", (int)(sizeof all / sizeof *all), r == err.code && r < 0, client != NULL, err.text);
			return 0;
		}
	END
} >"$dir/consumer.c"
cp "$dir/consumer.c" "$dir/consumer.cc"

flags() { PKG_CONFIG_PATH=$pkgconfig PKG_CONFIG_SYSROOT_DIR=$tree pkg-config "$@" moe-expert; }

# consumer NAME PROGRAM: what it says.
consumer() {
	"$2" "$dir/nobody" >"$dir/said" 2>&1
	grep -q "^$(wc -l <"$dir/functions") 1 0 $dir/nobody: no daemon listens there" "$dir/said"
	ok $? "$1: the program names the socket where no daemon listens" "$dir/said"
}

# build_both NAME SOURCE COMPILER...: against the shared library, and against the static one.
build_both() {
	name=$1 source=$2
	shift 2
	# Word splitting is meant: flags are several words.
	# shellcheck disable=SC2046
	"$@" -Wall -Werror -pedantic -o "$dir/shared" "$source" $(flags --cflags --libs) >"$dir/log" 2>&1
	ok $? "$name compiles against the shared library" "$dir/log" && consumer "$name, shared" "$dir/shared"
	# shellcheck disable=SC2046
	"$@" -Wall -Werror -pedantic -o "$dir/static" "$source" \
		$(flags --static --cflags --libs | sed 's/-lmoe-expert/-l:libmoe-expert.a/') >"$dir/log" 2>&1
	ok $? "$name compiles against the static library" "$dir/log" && consumer "$name, static" "$dir/static"
	readelf -d "$dir/shared" | grep -q 'NEEDED.*libmoe-expert.so.1'
	ok $? "$name, shared: needs the library by its soname"
	! readelf -d "$dir/static" | grep -q 'NEEDED.*libmoe-expert'
	ok $? "$name, static: does not need it"
}

build_both C "$dir/consumer.c" cc -std=c11
if command -v g++ >/dev/null 2>&1; then
	build_both C++ "$dir/consumer.cc" g++ -std=c++11
else
	skip 'C++: g++ is not installed'
fi

# -- the manual's example, and the programs together --------------------------------------------------------------

# The literal block of EXAMPLES; \e is roff's way to write a backslash.
sed -n '/^\.Sh EXAMPLES/,/^\.Ed/p' "$page" | sed -e '1,/^\.Bd/d' -e '/^\.Ed/d' -e 's/\\e/\\/g' >"$dir/example.c"
# shellcheck disable=SC2046
cc -Wall -Wextra -Werror -o "$dir/example" "$dir/example.c" $(flags --cflags --libs) >"$dir/log" 2>&1
require $? 'the example of libmoe-expert(3) compiles' "$dir/log"
MOE_EXPERTD_SOCKET=$dir/nobody "$dir/example" >"$dir/said" 2>&1
is $? 1 'the example without a daemon: exit code'

expertd=$prefix/bin/moe-expertd
start_daemon --model "$sample"
require $? 'the installed daemon starts' "$dir/daemon.log"
MOE_EXPERTD_SOCKET=$socket "$dir/example" >"$dir/said" 2>&1
is $? 0 'the example with a daemon: exit code' || sed 's/^/#   /' "$dir/said"
is "$(grep -cE '^layer [0-9]+: y\[0\] = -?[0-9.e-]+$' "$dir/said")" 6 'it computes each layer of the sample'
MOE_EXPERTD_SOCKET=$socket "$prefix/bin/moectl" models >"$dir/said" 2>&1
ok $? 'the installed moectl asks it' "$dir/said"
stop_daemon
ok $? 'the daemon ends'

"$prefix/bin/moe-worker" generate --model "$sample" --prompt NAME --tokens 4 >"$dir/said" 2>&1
ok $? 'the installed worker finds the installed daemon' "$dir/said"
finish
