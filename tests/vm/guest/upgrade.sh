# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# upgrade.sh - the packages are upgraded under a worker, which does not see it.

# Unpacking takes longer here than anything else.
step 'a worker' begin_worker 100 || return 1
before=$(main_pid)
old=$(dpkg-query -W -f '${Version}' moe-expertd)
step 'apt-get upgrades the packages under it' apt-get -q -y install /moe/upgrade/*.deb
step 'to the new version' equal "$(dpkg-query -W -f '${Version}' moe-expertd)" "$old+upgrade"
step 'the upgrade has exchanged the daemon' wait_for is_new "$before"
step 'the worker is at work' works
step 'no weights were read' nothing_read
step 'the worker ends well, with the quiet score' end_worker
