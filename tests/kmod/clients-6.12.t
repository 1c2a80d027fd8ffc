#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-6.12 - clients that ask the daemon through the kernel module, under Linux 6.12.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
test_clients 6.12-cloud
