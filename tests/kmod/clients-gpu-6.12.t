#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-gpu-6.12 - clients into whose GPU the daemon pushes, on the simulated driver, through the kernel module, under Linux
# 6.12.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"
TEST_CLIENTS=push-fills,registrar
test_clients 6.12-cloud
