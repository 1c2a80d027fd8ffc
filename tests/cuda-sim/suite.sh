# SPDX-License-Identifier: MIT
# shellcheck shell=sh
#
# suite - runs a test program on the simulated driver: `suite PROGRAM DELAY-US`.
set -u

build=${MOE_BUILD:?MOE_BUILD names the build folder}

suite() {
	LD_LIBRARY_PATH=$build/tests/cuda-sim MOE_TEST_DEVICE=cuda CUSIM_DELAY=$2
	export LD_LIBRARY_PATH MOE_TEST_DEVICE CUSIM_DELAY
	exec "$build/tests/$1"
}
