#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-tier-6.12 - clients of a tiered model, of daemons that cannot take over, and such as are recorded, through the kernel
# module, under Linux 6.12.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
TEST_CLIENTS=restart-tier,successor,trace
test_clients 6.12-cloud
