#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tiles - permission for AMX's tiles, their release, and the bits of AVX-512, in the emulated lane.
exec "${0%/*}/../../scripts/amx-lane.sh" run "${MOE_BUILD:-build}/tests/test-amx-static" \
	"TEST_SEED=${TEST_SEED:-$(date +%s)}"
