#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-in-guest - the first process of a machine in which tests of clients, the same as by the ring, ask the real
# daemon through the kernel module: MOE_TRANSPORT=kmod. That they did is told by the module's own count of requests.
B=/bin/busybox
"$B" --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp /build/daemon /build/tools /source/models
mount -t tmpfs tmp /tmp
ip link set lo up 2>/dev/null
ln -s /moe-expertd /build/daemon/moe-expertd
ln -s /moectl /build/tools/moectl
ln -s /tinymoe /source/models/tinymoe
export MOE_BUILD=/build MOE_SOURCE=/source MOE_EXPERTD_CONFIG=/dev/null RESTART_KILLS="${TEST_KILLS:-1}" MOE_TEST_EMULATED=1
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
	fi
}

counter() { # NAME
	cat "/sys/class/misc/moe-expert/$1"
}

# What is left for a moment after an end is waited for.
left() { # NAME
	waited=0
	while [ "$(counter "$1")" != 0 ] && [ $waited -lt 20 ]; do
		waited=$((waited + 1))
		sleep 1
	done
	counter "$1"
}

# What an emulated CPU shows of it.
bench() { # TRANSPORT
	timeout 180 /moe-bench ring --transport "$1" --daemon /tmp/socket --model tinymoe --samples 100 >/tmp/table 2>&1
	code=$?
	sed "s/^/# $1: /" /tmp/table
	is "$code $(grep -c '^NOP by the kernel module' /tmp/table)" '0 1' "moe-bench ring --transport $1 comes to its end"
}

run() { # TEST LEAST
	before=$(counter submitted)
	began=$(cut -d. -f1 /proc/uptime)
	"/test-$1" >/tmp/tap 2>&1
	code=$?
	sed 's/^/# /' /tmp/tap
	is "$code$(grep -c '^not ok' /tmp/tap)" 00 "test-$1: as by the ring"
	asked=$(($(counter submitted) - before))
	is "$([ $asked -ge "$2" ] && echo enough)" enough "test-$1: asked $asked times through the module, in $(($(cut -d. -f1 /proc/uptime) - began)) s"
	is "$(left requests) $(left clients)" '0 0' "test-$1: nothing is left in the module"
}

start() {
	/moe-expertd --socket /tmp/socket --model /tinymoe --threads 1 >>/tmp/log 2>&1 &
	daemon=$!
	waited=0
	until /moectl --socket /tmp/socket status --json 2>/dev/null | grep -q '"state": "ready"' || [ $waited = 120 ]; do
		waited=$((waited + 1))
		sleep 1
	done
}

export MOE_TRANSPORT=kmod
start
is "$(/moe-bench ring --transport kmod --daemon /tmp/socket 2>&1 | grep -c 'serves no queue')" 1 'without the module a client is told so'
kill "$daemon"
wait "$daemon"
insmod /moe_expert.ko
for part in $(echo "${TEST_CLIENTS:-session,restart}" | tr , ' '); do
	case $part in
	restart)
		run restart 3000
		is "$([ "$(counter reissued)" -gt 0 ] && echo some)" some "the module issued $(counter reissued) requests again"
		;;
	session) run session 2000 ;;
	agree) run agree 1000 ;;
	bench)
		start
		bench kmod
		bench kmod-ioctl
		kill "$daemon"
		wait "$daemon"
		;;
	*) run "$part" 100 ;;
	esac
done
export MOE_TRANSPORT=
start
is "$(counter queues)" 1 "a daemon serves a queue, whoever asks"
case $(uname -r) in
6.1.*) way=ioctl ;;
*) way=io_uring ;;
esac
is "$(/moectl --socket /tmp/socket status | grep -c "serves a queue by $way:")" 1 "by $way"
kill "$daemon"
wait "$daemon"
is "$(left queues)" 0 'an end in order ends the queue'
rmmod moe_expert
is "$(lsmod | grep -c moe_expert)" 0 'and the module can go'
echo "1..$count"
echo "kmod: exit $failed"
poweroff -f
