#!/bin/sh
# SPDX-License-Identifier: MIT
# prefetch - the suite of chunks and guesses, pushed into the device by a fake daemon: on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-prefetch 200
