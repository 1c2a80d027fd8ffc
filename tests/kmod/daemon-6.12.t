#!/bin/sh
# SPDX-License-Identifier: MIT
#
# daemon-6.12 - the daemon as a user of the kernel module, under Linux 6.12.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
test_daemon 6.12-cloud
