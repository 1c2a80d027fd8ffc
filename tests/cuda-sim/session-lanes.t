#!/bin/sh
# SPDX-License-Identifier: MIT
# session-lanes - the suite of streams and lanes through the library, on the device, behind a real daemon: on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-session-lanes-gpu 20
