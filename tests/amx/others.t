#!/bin/sh
# SPDX-License-Identifier: MIT
#
# others - a few problems for every table that the emulated CPU runs, in the emulated lane: it has features of Intel that
# the machine at hand may lack.
exec "${0%/*}/../../scripts/amx-lane.sh" run "${MOE_BUILD:-build}/tests/test-formats-static" TEST_SHAPES=16 \
	TEST_COMPANIES=2 "TEST_SEED=${TEST_SEED:-$(date +%s)}"
