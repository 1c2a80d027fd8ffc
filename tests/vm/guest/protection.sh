# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# protection.sh - what the unit says that the daemon must not, the running daemon cannot.

pid=$(property MainPID)
exposure() {
	systemd-analyze security --no-pager --threshold=10 "$unit" | tail -n 2
}
step 'systemd-analyze security of the running unit: at most 1.0' exposure
note "$(tail -n 1 out)"
field() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$pid/status"; }
step 'it runs as its user' equal "$(stat -c %U "/proc/$pid")" moe-expertd
step 'without capabilities' equal "$(field CapBnd) $(field CapEff) $(field CapAmb)" \
	'0000000000000000 0000000000000000 0000000000000000'
step 'without new privileges' equal "$(field NoNewPrivs)" 1
step 'with a filter of system calls' equal "$(field Seccomp)" 2
step 'with as much locked memory as it likes' contains "$(grep 'Max locked memory' "/proc/$pid/limits")" \
	'unlimited +unlimited'
step 'and 65536 files' contains "$(grep 'Max open files' "/proc/$pid/limits")" '65536 +65536'
step 'killed late when memory is short' equal "$(cat "/proc/$pid/oom_score_adj")" -900
for space in mnt net; do
	step "in a $space namespace of its own" refuses \
		equal "$(readlink "/proc/$pid/ns/$space")" "$(readlink "/proc/1/ns/$space")"
done

inside() { nsenter -t "$pid" -m -- "$@"; }
step 'it cannot write below /usr' refuses inside touch /usr/x
step 'nor below /etc' refuses inside touch /etc/moe-expertd/x
step 'nor into /sys' refuses inside sh -c 'echo 0 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages'
step 'it can below /run/moe-expertd' inside sh -c 'touch /run/moe-expertd/x && rm /run/moe-expertd/x'
step 'it sees no home' equal "$(inside stat -c '%U %a' /root /home)" "$(printf 'root 0\nroot 0')"
step 'nor other files of /tmp' sh -c "touch /tmp/mine && ! nsenter -t $pid -m -- test -e /tmp/mine"
step 'nor disks' refuses inside ls /dev/nvme0n1
step 'nor the network' equal "$(nsenter -t "$pid" -n -- cat /proc/net/dev | grep -vc -e '|' -e 'lo:')" 0
