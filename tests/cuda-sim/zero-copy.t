#!/bin/sh
# SPDX-License-Identifier: MIT
# zero-copy - experts that are read in the pool, on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-zero-copy 200
