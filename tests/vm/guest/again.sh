# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# again.sh - after a reboot the service is there by itself, with the model of its configuration, on huge pages that were
# reserved before; removing the packages leaves a clean system.

huge=/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
step 'the service has come up by itself' wait_for has ActiveState active
step 'huge pages were reserved' equal "$(cat $huge)" 64
step 'before it' [ "$(property ActiveEnterTimestampMonotonic moe-expertd-hugepages@0.service)" -lt \
	"$(property ExecMainStartTimestampMonotonic)" ]
step 'it serves the model of its configuration' equal "$(moectl models --json | jq -r '.models[].name')" tinymoe
step 'on these pages' equal "$(moectl models --json | jq -r '[.models[0] | .. | .rung? // empty] | unique | join(" ")')" 2m
step 'and is of the new version' contains "$(dpkg-query -W -f '${Version}' moe-expertd)" 'upgrade$'
step 'no unit has failed' equal "$(systemctl list-units --failed --plain --no-legend)" ''

export DEBIAN_FRONTEND=noninteractive
step 'apt-get purge' apt-get -q -y purge moe-expertd libmoe-expert1 moe-expertd-doc
step 'the daemon has ended' equal "$(ps -o pid= -u moe-expertd)" ''
step 'no unit is left' equal "$(systemctl list-unit-files --no-legend 'moe-expertd*')" ''
step 'no unit has failed then' equal "$(systemctl list-units --failed --plain --no-legend)" ''
