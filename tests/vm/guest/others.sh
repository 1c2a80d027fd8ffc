# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# others.sh - one more daemon beside the first, by the unit's instances.

printf '[Models]\nModel=second:/srv/tinymoe\nPages=4k\n' >/etc/moe-expertd/b.conf
second() { moectl --socket /run/moe-expertd/b/socket "$@"; }
step 'moe-expertd@b starts' systemctl start moe-expertd@b.service
step 'and has the model of its file' equal "$(second models --json | jq -r '.models[].name')" second
step 'the first one has not changed' equal "$(moectl models --json | jq -r '.models[].name')" tinymoe
step 'its restart reads nothing again' systemctl restart moe-expertd@b.service
step 'nothing' equal "$(second status --json | jq -r .weight_bytes_read)" 0
step 'it stops' systemctl stop moe-expertd@b.service
step 'and leaves the first one' has ActiveState active
