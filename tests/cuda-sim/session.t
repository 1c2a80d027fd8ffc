#!/bin/sh
# SPDX-License-Identifier: MIT
# session - the suite of sessions, with slots on the device, behind a real daemon: on the simulated driver, with delays.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-session 20
