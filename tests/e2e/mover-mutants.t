#!/bin/sh
# SPDX-License-Identifier: MIT
#
# mover-mutants - each step of the mover's law is needed: test-mover fails where one is left out (tests/mover-mutants.c).
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

[ -z "${MOE_SANITIZED-}" ] || skip_all 'the build without sanitizers shows it'

# run MUTANTS
run() { MOVER_MUTANT=$1 TEST_SEED=7 timeout 120 "$build/tests/test-mover-mutants" >"$dir/last" 2>&1; }

run none
require $? 'with all of its steps test-mover passes' "$dir/last"
# catches MUTANTS NAME
catches() {
	run "$1"
	code=$?
	[ $code != 0 ]
	ok $? "$2: $(grep -m 1 '^not ok' "$dir/last" || echo "ended with $code")" "$dir/last"
}
catches short 'half of a copy does not come'
catches short,unchecked 'the same, and no digest is compared that would tell'
catches forgotten 'the new table does not take its place'
catches kept 'a table takes its place although a copy failed'
finish
