#!/bin/sh
# SPDX-License-Identifier: MIT
# slots-dmabuf - slots as a dma-buf, on the simulated driver.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
suite test-slots-dmabuf 0
