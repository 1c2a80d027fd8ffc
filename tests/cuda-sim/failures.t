#!/bin/sh
# SPDX-License-Identifier: MIT
# failures - what a driver may refuse, at each call once and for ever.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-cuda-failures 0
