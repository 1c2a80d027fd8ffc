#!/bin/sh
# SPDX-License-Identifier: MIT
#
# linux-6.12 - the kernel module under Linux 6.12.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
test_kernel 6.12-cloud
