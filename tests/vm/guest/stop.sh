# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# stop.sh - systemctl stop leaves nothing.

no_process() { equal "$(ps -o pid= -u moe-expertd)" ''; }
all_free() { equal "$(sed -n 's/^HugePages_Free: *//p' /proc/meminfo)" "$(sed -n 's/^HugePages_Total: *//p' /proc/meminfo)"; }
step 'systemctl stop' systemctl stop "$unit"
step 'has ended well' has Result success
step 'the store is empty' has NFileDescriptorStore 0
step 'no process is left' no_process
step 'all huge pages are free' wait_for all_free
step 'no file in /run/moe-expertd' equal "$(find /run/moe-expertd -type s -o -type f)" ''
step 'no unit has failed' equal "$(systemctl list-units --failed --plain --no-legend)" ''
