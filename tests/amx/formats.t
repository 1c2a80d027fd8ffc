#!/bin/sh
# SPDX-License-Identifier: MIT
#
# formats - AMX in every format against the reference, in the emulated lane.
exec "${0%/*}/../../scripts/amx-lane.sh" run "${MOE_BUILD:-build}/tests/test-formats-static" TEST_TABLE=amx \
	"TEST_SHAPES=${TEST_SHAPES:-60}" TEST_COMPANIES=4 "TEST_SEED=${TEST_SEED:-$(date +%s)}"
