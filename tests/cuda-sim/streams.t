#!/bin/sh
# SPDX-License-Identifier: MIT
# streams - steps on streams of the caller's, on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-streams 200
