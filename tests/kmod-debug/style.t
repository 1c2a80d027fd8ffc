#!/bin/sh
# SPDX-License-Identifier: MIT
#
# style - what the kernel's own tools say of the module: checkpatch of Linux 6.12 of each file but for what is agreed here,
# and sparse, with all warnings of W=1, against the headers of 6.1 and 6.12.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd) || exit 1
cd "$root" || exit 1
n=0

result() {
	n=$((n + 1))
	[ "$1" = 0 ] && echo "ok $n - $2" && return
	sed 's/^/# /' "$dir/log"
	echo "not ok $n - $2"
}

# The types that are agreed to be ignored: a macro that makes names of its argument; how trace events are written all
# over the kernel; the header that is the library's as well, whose width and comments are the project's.
ignored_in() {
	case $1 in
	*/counters.c) echo MACRO_ARG_REUSE ;;
	*/trace.h) echo OPEN_ENDED_LINE,PARENTHESIS_ALIGNMENT ;;
	lib/uapi/*) echo BLOCK_COMMENT_STYLE,LONG_LINE,LONG_LINE_COMMENT ;;
	*) echo NONE ;;
	esac
}

check_files() {
	source=$(scripts/debug-kernel.sh where source-6.12)/linux
	for file in kmod/*.[ch] kmod/Kbuild lib/uapi/moe_kmod.h; do
		perl "$source/scripts/checkpatch.pl" --no-tree --strict --terse --show-types --ignore "$(ignored_in "$file")" \
			--file "$file" >"$dir/log" 2>&1
		result "$?" "checkpatch: $file"
	done
}

check_build() {
	sparse=$(scripts/debug-kernel.sh where build-tools)/usr/bin/sparse
	scripts/kmod.sh -o "$dir/$1" "$(scripts/qemu-lane.sh where "headers-$1")/build" W=1 C=1 "CHECK=$sparse" >"$dir/log" 2>&1
	code=$?
	[ "$code" != 0 ] || ! grep -q '/kmod/.*\(warning\|error\)' "$dir/log" || code=1
	[ "$(grep -c '^  CHECK ' "$dir/log")" -ge 5 ] || code=1
	result "$code" "sparse, and W=1: $1"
}

lacks=$(scripts/debug-kernel.sh missing build-tools source-6.12) || lacks="$lacks "
lacks=$lacks$(scripts/qemu-lane.sh missing headers-6.1-cloud headers-6.12-cloud)
[ -z "$lacks" ] || {
	echo "1..0 # SKIP no $lacks: make check-kmod-debug fetches it (scripts/debug-kernel.sh, scripts/qemu-lane.sh)"
	exit 0
}
dir=$(mktemp -d "${TMPDIR:-/tmp}/moe-kmod-style.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
check_files
check_build 6.1-cloud
check_build 6.12-cloud
echo "1..$n"
