#!/bin/sh
# SPDX-License-Identifier: MIT
#
# linux-6.1 - the kernel module under Linux 6.1.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
test_kernel 6.1-cloud
