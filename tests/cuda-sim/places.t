#!/bin/sh
# SPDX-License-Identifier: MIT
# places - the suite of places on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-places 200
