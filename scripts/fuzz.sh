#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fuzz.sh - builds the fuzz targets with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs one.
#
#   scripts/fuzz.sh TARGET [RUNS]   runs tests/fuzz/fuzz-TARGET.c so many times (default 10000000)
#   scripts/fuzz.sh --minimise TARGET
#                                   what the runs found goes into tests/fuzz/corpus/TARGET as far as it adds coverage
#
# New inputs are kept in build-fuzz/found/TARGET, so that a run goes on where the one before ended; an input that fails is
# written to build-fuzz/failed-TARGET-*: it goes into the corpus with the fix. Needs clang and its runtime
# (libclang-rt-dev). Exit codes: 0 nothing found, 1 cannot build, 2 usage, else libFuzzer's.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
build=$here/build-fuzz

usage() {
	sed -n '4,14s/^# \{0,1\}//p' "$0"
	exit "$1"
}

minimise=0
case ${1-} in
-h | --help) usage 0 ;;
--minimise)
	minimise=1
	shift
	;;
esac
target=${1-}
runs=${2-10000000}
if [ -z "$target" ] || [ ! -f "$here/tests/fuzz/fuzz-$target.c" ]; then
	usage 2 >&2
fi

if [ ! -f "$build/build.ninja" ]; then
	CC=${CC:-clang} meson setup "$build" "$here" -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false \
		-Ddnnl=disabled -Dggml=disabled || exit 1
fi
ninja -C "$build" "tests/fuzz/fuzz-$target" || exit 1

program=$build/tests/fuzz/fuzz-$target
corpus=$here/tests/fuzz/corpus/$target
found=$build/found/$target
mkdir -p "$corpus" "$found"
export MOE_SOURCE="$here"
if [ "$minimise" = 1 ]; then
	exec "$program" -merge=1 -close_fd_mask=1 "$corpus" "$found"
fi
exec "$program" -runs="$runs" -max_len=4096 -timeout=60 -close_fd_mask=1 -print_final_stats=1 \
	-artifact_prefix="$build/failed-$target-" "$found" "$corpus"
