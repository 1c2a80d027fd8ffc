#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-bus-6.12 - what a session through the kernel module shows on the bus and in the documents, under Linux 6.12.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
TEST_CLIENTS=figures
test_clients 6.12-cloud
