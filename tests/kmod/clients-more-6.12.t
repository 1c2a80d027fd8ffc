#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-more-6.12 - more clients that ask the daemon through the kernel module, under Linux 6.12: lanes and agreements.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
TEST_CLIENTS=session-lanes,agree
test_clients 6.12-cloud
