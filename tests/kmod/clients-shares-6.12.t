#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-shares-6.12 - clients that share the daemon through the kernel module, under Linux 6.12: who asks for much and
# who for little, what is hot for all, ranks of one group.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
TEST_CLIENTS=shares,warm,group
test_clients 6.12-cloud
