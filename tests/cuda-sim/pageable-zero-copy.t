#!/bin/sh
# SPDX-License-Identifier: MIT
# pageable-zero-copy - experts that are read in the pool by the host's page tables.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
export CUSIM_PAGEABLE=1
suite test-zero-copy 200
