#!/bin/sh
# SPDX-License-Identifier: MIT
#
# linux-6.12-kasan - the kernel module under a Linux 6.12 that looks for faults, and fails what it is told to.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/../kmod/in-qemu.sh"
test_kernel 6.12-kasan
