#!/bin/sh
# SPDX-License-Identifier: MIT
# push-engine-failures - the same suite as engine-failures.t, pushed into the device by a fake daemon: on the simulated driver, with delays.
MOE_TEST_PUSH=1
export MOE_TEST_PUSH
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-engine-failures 100
