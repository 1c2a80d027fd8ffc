#!/bin/sh
# SPDX-License-Identifier: MIT
# defer - deferred experts on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-defer 200
