#!/bin/sh
# SPDX-License-Identifier: MIT
# push-fills - pushed FILLs that fail, guesses, and what they take: daemon and worker on the simulated driver.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-push-fills 0
