# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# install.sh - the packages go onto a clean system, and systemd knows what they brought.

step 'the system has come up without a failed unit' equal "$(systemctl list-units --failed --plain --no-legend)" ''
export DEBIAN_FRONTEND=noninteractive
step 'apt-get installs the packages, and nothing else is needed' apt-get -q -y install /moe/debs/*.deb ||
	return 1
step 'dpkg has nothing to say about them' equal "$(dpkg --audit)" ''
step 'there is the user' getent passwd moe-expertd
step 'and its group' getent group moe-expertd

# The keys that 254 brought are in the unit for it; 252 says that it does not know them.
verify() {
	for one in moe-expertd.service moe-expertd.socket moe-expertd@b.service moe-expertd@b.socket \
		moe-expertd-hugepages@0.service; do
		systemd-analyze verify --man=no "$one" 2>&1
	done | grep -v "Unknown key '\(RestartSteps\|RestartMaxDelaySec\)'" >verified
	cat verified
	[ ! -s verified ]
}
step 'systemd-analyze verify has nothing to say about the units' verify
step 'the service is enabled' has UnitFileState enabled
step 'and was started by the installation' wait_for has ActiveState active
# The bus learns of the policy that came with the package a moment after the daemon has started.
named() { busctl get-property org.moeexpertd /org/moeexpertd org.moeexpertd.Manager1 Version; }
step 'and is on the bus' wait_for named
step 'the instances, the socket and the huge pages are not enabled' \
	equal "$(systemctl is-enabled moe-expertd.socket moe-expertd-hugepages@0.service | sort -u)" disabled
