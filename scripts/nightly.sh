#!/bin/sh
# SPDX-License-Identifier: MIT
#
# nightly.sh - the long runs that ./check has no time for, one after the other, and what each of them said.
#
#   scripts/nightly.sh [--list] [--fraction N] [STEP...]
#
#   --list        the steps, and what each is
#   --fraction N  an N-th of each (default 1): to see that they run, or before going to lunch; of `check` its --quick form
#   STEP          only these, in this order (default: all but fuzz, which takes days: name it, or single targets)
#
# A step's words go to build-nightly/STEP.log, its end to the output. Exit codes: 0 nothing failed, 1 something did,
# 2 usage.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
cd "$here" || exit 1
logs='build-nightly'
fraction=1

steps='goals check restart adversary soak amx'

list() {
	cat <<-'END'
		goals        round trips and restarts beside the goals for them (scripts/goals.pl)
		check        ./check --all
		restart      1,000 deaths of daemon and clients at each point, of whole and of tiered models, and of agreements
		adversary    100,000,000 claims from a client that rewrites its ring, under AddressSanitizer
		soak         half an hour under kills; the daemon ends with the memory and the descriptors that it began with
		amx          10,000 shapes of each format in an emulated CPU with AMX
		fuzz         10,000,000 inputs for each target of tests/fuzz; fuzz-TARGET: for one
	END
}

usage() {
	sed -n '4,14s/^# \{0,1\}//p' scripts/nightly.sh
	exit "$1"
}

while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) usage 0 ;;
	--list) list && exit 0 ;;
	--fraction)
		fraction=${2-}
		case $fraction in
		'' | *[!0-9]* | 0*) echo "nightly: --fraction takes a number above 0, found '$fraction'" >&2 && exit 2 ;;
		esac
		shift 2
		;;
	-*) echo "nightly: unknown option $1 (try --help)" >&2 && exit 2 ;;
	*) break ;;
	esac
done
[ $# -gt 0 ] || eval "set -- $steps"

for step in "$@"; do
	case $step in
	goals | check | restart | adversary | soak | amx | fuzz) ;;
	fuzz-*) [ -f "tests/fuzz/$step.c" ] || { echo "nightly: there is no tests/fuzz/$step.c" >&2 && exit 2; } ;;
	*) echo "nightly: unknown step $step (try --list)" >&2 && exit 2 ;;
	esac
done

# part N: an N-th of it, at least 1
part() { echo $((($1 + fraction - 1) / fraction)); }

# built FOLDER MESON-OPTION... -- TARGET...
built() {
	folder=$1
	shift
	set_up=
	while [ "$1" != -- ]; do
		set_up="$set_up $1"
		shift
	done
	shift
	# Word splitting is meant.
	# shellcheck disable=SC2086
	[ -f "$folder/build.ninja" ] || meson setup "$folder" $set_up || return
	ninja -C "$folder" "$@"
}

# run_of FOLDER TEST VARIABLE=VALUE...
run_of() {
	folder=$1 program=$1/tests/$2
	shift 2
	env MOE_SOURCE="$here" MOE_BUILD="$here/$folder" "$@" "$program"
}

run_step() {
	case $1 in
	goals) built build -- && scripts/goals.pl --runs "$(part 5)" ;;
	check)
		if [ "$fraction" = 1 ]; then ./check --all; else ./check --quick; fi
		;;
	restart)
		kills=$(part 1000)
		built build -- && run_of build test-restart RESTART_KILLS="$kills" &&
			run_of build test-restart-tier RESTART_KILLS="$kills" && run_of build test-agree RESTART_KILLS="$kills"
		;;
	adversary)
		built build-asan -Dwerror=true -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 -- \
			tests/test-adversary daemon/moe-expertd tools/moectl &&
			run_of build-asan test-adversary ADVERSARY_CLAIMS="$(part 100000000)" MOE_SANITIZED=1
		;;
	soak)
		built build -- && MOE_BUILD=build tests/soak.sh --minutes "$(awk -v n="$fraction" 'BEGIN { print 30 / n }')"
		;;
	amx)
		built build -- tests/test-formats-static && scripts/amx-lane.sh prepare &&
			TEST_SHAPES=$(part 10000) MOE_BUILD=build MOE_AMX_LIMIT=86400 tests/amx/formats.t
		;;
	fuzz)
		for target in tests/fuzz/fuzz-*.c; do
			one=${target#tests/fuzz/fuzz-}
			scripts/fuzz.sh "${one%.c}" "$(part 10000000)" || return
		done
		;;
	fuzz-*) scripts/fuzz.sh "${1#fuzz-}" "$(part 10000000)" ;;
	esac
}

mkdir -p "$logs" || exit 1
failed=0
for step in "$@"; do
	began=$(date +%s)
	printf 'nightly: %s ... ' "$step"
	# A TAP program that dies before its last line has failed by its code.
	if (run_step "$step") >"$logs/$step.log" 2>&1 </dev/null && ! grep -q '^not ok' "$logs/$step.log"; then
		word=good
	else
		word="FAILED, see $logs/$step.log"
		failed=1
	fi
	printf '%s, %s s\n' "$word" $(($(date +%s) - began))
done
exit $failed
