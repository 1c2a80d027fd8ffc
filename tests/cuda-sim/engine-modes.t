#!/bin/sh
# SPDX-License-Identifier: MIT
# engine-modes - the same for what is counted by mode.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-engine-modes 200
