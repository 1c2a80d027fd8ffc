#!/bin/sh
# SPDX-License-Identifier: MIT
# engine - the suite of the engine on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-engine 200
