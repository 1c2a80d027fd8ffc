#!/bin/sh
# SPDX-License-Identifier: MIT
#
# linux-6.12-kcsan - the kernel module under a Linux 6.12 that looks for data races.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/../kmod/in-qemu.sh"
test_kernel 6.12-kcsan
