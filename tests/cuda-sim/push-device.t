#!/bin/sh
# SPDX-License-Identifier: MIT
# push-device - what a client may give as slots in a GPU, with the simulated driver.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-push-device 0
