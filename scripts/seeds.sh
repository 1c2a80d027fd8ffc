#!/bin/sh
# SPDX-License-Identifier: MIT
#
# seeds.sh - runs tests again and again with other seeds, and says which seeds they fail with.
#
#   scripts/seeds.sh [--build FOLDER] [--from SEED] N NAME...
#
#   --build FOLDER  a build of ./check's or your own (default build), e.g. build-asan
#   --from SEED     the first seed (default: the clock's); the others follow it
#   N NAME...       how many seeds, and which tests of the suite `unit`, e.g. test-plan test-formats
#
# Continuous integration always draws the same numbers, so new ones are looked for here. Exit code: 0 none failed,
# 1 some did: `TEST_SEED=SEED` repeats it; 2 usage.
set -u

usage() {
	echo "seeds: $* (try --help)" >&2
	exit 2
}

build=build
from=$(date +%s)
while [ "$#" -gt 0 ]; do
	case $1 in
	-h | --help)
		sed -n '4,13s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	--build | --from)
		[ "$#" -gt 1 ] || usage "$1 needs a value"
		[ "$1" = --build ] && build=$2 || from=$2
		shift 2
		;;
	-*) usage "unknown option $1" ;;
	*) break ;;
	esac
done
[ "$#" -gt 1 ] || usage 'how many seeds, and of which tests?'
case $1$from in *[!0-9]*) usage "numbers expected, found $1 seeds from $from" ;; esac
n=$1
shift
cd "$(dirname -- "$0")/.." || exit 1
case $build in /*) ;; *) build=$PWD/$build ;; esac
list=$(scripts/test-list "$build" unit "$@") || exit 1
[ -n "$list" ] || usage "no test of the suite unit is named $*"
sanitized=$(meson introspect --buildoptions "$build" |
	perl -MJSON::PP -e 'local $/; print map { $_->{value} } grep { $_->{name} eq "b_sanitize" } @{decode_json(<>)}')
[ "$sanitized" != none ] || sanitized=
# As ./check runs them.
export MOE_BUILD="$build" MOE_SOURCE="$PWD" MOE_SANITIZED="$sanitized" TAP_TIMEOUT="${TAP_TIMEOUT:-900}"
[ -z "$sanitized" ] || export TAP_PREFIX='setarch x86_64 -R'
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1" TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1"
export ASAN_OPTIONS="detect_stack_use_after_return=1"

dir=$(mktemp -d "${TMPDIR:-/tmp}/moe-seeds.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
bad=0
seed=$from
while [ "$seed" -lt $((from + n)) ]; do
	failed=0
	for test in $list; do
		TEST_SEED=$seed scripts/tap-run "$test" >"$dir/out" 2>"$dir/err" </dev/null
		code=$?
		if [ "$code" = 0 ] && grep -q '^1\.\.' "$dir/out" && ! grep -q '^not ok' "$dir/out"; then
			continue
		fi
		failed=1
		echo "TEST_SEED=$seed $test: exit code $code"
		{ grep -A 5 '^not ok' "$dir/out" || tail -n 2 "$dir/out"; } | head -n 30 | sed 's/^/    /'
		tail -n 30 "$dir/err" | sed 's/^/    stderr: /'
	done
	bad=$((bad + failed))
	seed=$((seed + 1))
done
echo "$bad of $n seeds from $from failed"
[ "$bad" = 0 ]
