# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# in-guest - what the first process of a machine with the module, the daemon and the sample model begins and ends with
# (clients-in-guest.sh, daemon-in-guest.sh). TAP goes to the console.
B=/bin/busybox
"$B" --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs tmp /tmp
ip link set lo up 2>/dev/null
socket=/tmp/socket
options=
count=0
failed=0

is() { # FOUND EXPECTED NAME
	count=$((count + 1))
	if [ "$1" = "$2" ]; then
		echo "ok $count - $3"
	else
		failed=$((failed + 1))
		echo "not ok $count - $3"
		echo "#   found $1, expected $2"
		[ ! -f /tmp/log ] || tail -n 5 /tmp/log | sed 's/^/#   /'
	fi
}

counter() { # NAME
	cat "/sys/class/misc/moe-expert/$1"
}

# With $options; $daemon is its process.
start() {
	# shellcheck disable=SC2086 # they are several words
	/moe-expertd --socket $socket --model /tinymoe --threads 1 $options >>/tmp/log 2>&1 &
	daemon=$!
	waited=0
	until /moectl --socket $socket status --json >/tmp/status 2>/dev/null && grep -q '"state": "ready"' /tmp/status; do
		waited=$((waited + 1))
		kill -0 "$daemon" 2>/dev/null && [ $waited -lt 120 ] || return 1
		sleep 1
	done
}

stop() {
	kill "$daemon"
	wait "$daemon"
}

# The module must go, too.
end() {
	rmmod moe_expert
	is "$(lsmod | grep -c moe_expert)" 0 'and the module can go'
	echo "1..$count"
	echo "kmod: exit $failed"
	poweroff -f
}
