#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-6.1 - clients that ask the daemon through the kernel module by ioctl and poll, under Linux 6.1.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
test_clients 6.1-cloud
