# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# service.sh - start, status, reload, stop, the socket unit, the journal; and huge pages that a unit reserves.

step 'systemctl stop' systemctl stop "$unit"
step 'it has ended well' has Result success
step 'systemctl start' systemctl start "$unit" || return 1
step 'it is active' has ActiveState active
step 'systemd was told so by the daemon' has Type notify
step 'which says how it is' contains "$(property StatusText)" '[a-z]'
note "STATUS=$(property StatusText)"
step 'systemd expects signs of life' has WatchdogUSec 10s
step 'it keeps no model yet' contains "$(property NFileDescriptorStore)" '^[0-9]$'
note "$(property NFileDescriptorStore) descriptors in the store"
step 'moectl status answers' moectl status
step 'systemctl reload' systemctl reload "$unit"
step 'the same daemon goes on' wait_for has ActiveState active
step 'the journal has its lines' contains "$(journalctl -q -u "$unit" -o cat)" 'ready|READY'

# A unit reserves them as an administrator would have it do.
echo PAGES_2M=64 >/etc/moe-expertd/hugepages-node0.conf
step 'moe-expertd-hugepages@0 starts' systemctl start moe-expertd-hugepages@0.service
step 'and has reserved them' equal "$(cat /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages)" 64

# Clients come before the daemon.
systemctl stop "$unit"
step 'the socket unit starts' systemctl start moe-expertd.socket
step 'without the daemon' has ActiveState inactive
step 'a client starts the daemon' moectl status
step 'which is active then' wait_for has ActiveState active
step 'the socket belongs to the group' equal "$(stat -c '%U %G %a' "$socket")" 'moe-expertd moe-expertd 660'
step 'systemctl stop of both' systemctl stop "$unit" moe-expertd.socket
step 'no socket is left' [ ! -e "$socket" ]
step 'the daemon makes its own when there is no unit for it' systemctl start "$unit"
step 'for its group too' equal "$(stat -c '%U %G %a' "$socket")" 'moe-expertd moe-expertd 660'
