#!/bin/sh
# SPDX-License-Identifier: MIT
# guesses - the suite of what a session guesses for its next layer: on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-guesses 200
