#!/bin/sh
# SPDX-License-Identifier: MIT
# pageable-engine - the suite of the engine on a device that reads the host's memory by its page tables.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
export CUSIM_PAGEABLE=1
suite test-engine 200
