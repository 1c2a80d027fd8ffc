#!/bin/sh
# SPDX-License-Identifier: MIT
# slots-no-dmabuf - a driver that makes no dma-bufs.
# shellcheck source=tests/cuda-sim/suite.sh
. "$(dirname -- "$0")/suite.sh"
export CUSIM_NO_DMA_BUF=1
suite test-slots-dmabuf 0
