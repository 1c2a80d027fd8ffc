#!/bin/sh
# SPDX-License-Identifier: MIT
#
# mutants - every place in the library where a stream is told to wait is needed: a simulated driver that leaves out the
# waits of one of them, all that come from there, makes the suite fail that reaches it.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/../e2e/lib.sh"

[ -z "${MOE_SANITIZED-}" ] || skip_all 'the build without sanitizers shows it'

LD_LIBRARY_PATH=$build/tests/cuda-sim
MOE_TEST_DEVICE=cuda
TEST_SEED=7
TEST_REPLAYS=30
CUSIM_DELAY=300
export LD_LIBRARY_PATH MOE_TEST_DEVICE TEST_SEED TEST_REPLAYS CUSIM_DELAY

# run MUTANT: a suite that reaches each of the places; its last words are in $dir/last.
run() { CUSIM_MUTANT=drop-wait:$1 timeout 300 "$build/tests/$suite" >"$dir/last" 2>&1; }

# catch COMMAND...: what the suite says that fails, in $caught; 0: it passes, with other pauses as well.
catch() {
	for TEST_SEED in 7 8 9 10 11; do
		"$@"
		caught=$?
		[ $caught = 0 ] || break
	done
	TEST_SEED=7
	[ "$caught" = 0 ] || caught="$(grep -m 1 -e '^cuda-sim:' -e '^not ok' "$dir/last")"
}

for suite in test-engine test-streams test-lanes; do
	CUSIM_LOG=$dir/log-$suite
	export CUSIM_LOG
	run none
	require $? "$suite: with all waits it passes" "$dir/last"
	sort -u "$CUSIM_LOG" >"$dir/sites"
	unset CUSIM_LOG
	places=$(wc -l <"$dir/sites")
	within "$places" 3 100 "$suite: places that wait"
	while read -r _ site call caller beyond; do
		catch run "$site"
		[ "$caught" != 0 ]
		ok $? "$suite: $call from $caller, from $beyond: without it $caught"
	done <"$dir/sites"
done

# Words that nobody resets, and a lane for two streams at a time: in the suite of lanes.
suite=test-lanes
# shellcheck disable=SC2317 # catch calls it
with() { env "$1" timeout 300 "$build/tests/$suite" >"$dir/last" 2>&1; }
run_with() { # NAME=VALUE NAME
	catch with "$1"
	[ "$caught" != 0 ]
	ok $? "$suite: $2: $caught"
}
run_with CUSIM_MUTANT=no-reset 'words that are not reset'
run_with TEST_SHARED_LANE=1 'micro-batches that share their lanes'
finish
