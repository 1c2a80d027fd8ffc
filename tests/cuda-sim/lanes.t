#!/bin/sh
# SPDX-License-Identifier: MIT
# lanes - captured passes on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-lanes 50
