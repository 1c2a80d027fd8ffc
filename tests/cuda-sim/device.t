#!/bin/sh
# SPDX-License-Identifier: MIT
# device - the promises of a device on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-device 50
