#!/bin/sh
# SPDX-License-Identifier: MIT
# registrar - who may register memory with the simulated driver, among processes.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-registrar 0
