#!/bin/sh
# SPDX-License-Identifier: MIT
#
# keep-systemd - what --keep promises about descriptors, systemd keeps as well: the same test under a service manager.
#
# The manager knows one unit (tests/e2e/systemd.sh).
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"
# shellcheck source=tests/e2e/systemd.sh
. "$root/tests/e2e/systemd.sh"

test=$build/tests/test-handover
need_systemd
case $test in /*) ;; *) test=$root/$test ;; esac
where_systemd_is "$test" systemd
code=$?
leave_groups
exit $code
