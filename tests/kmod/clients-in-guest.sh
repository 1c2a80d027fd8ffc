#!/bin/sh
# SPDX-License-Identifier: MIT
#
# clients-in-guest - the first process of a machine in which tests of clients, the same as by the ring, ask the real
# daemon through the kernel module: MOE_TRANSPORT=kmod. That they did is told by the module's own count of requests.
# shellcheck source=tests/kmod/in-guest.sh
. /in-guest.sh
mkdir -p /build/daemon /build/tools /source/models /etc
ln -s /moe-expertd /build/daemon/moe-expertd
ln -s /moectl /moe-mkmodel /build/tools/
ln -s /tinymoe /source/models/tinymoe
ln -s /dbus /source/dbus
ln -s /dbus-daemon /bin/
echo 'root:x:0:0::/:/bin/sh' >/etc/passwd
export MOE_BUILD=/build MOE_SOURCE=/source MOE_EXPERTD_CONFIG=/dev/null RESTART_KILLS="${TEST_KILLS:-1}" MOE_TEST_EMULATED=1

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
	timeout 180 /moe-bench ring --transport "$1" --daemon $socket --model tinymoe --samples 100 >/tmp/table 2>&1
	code=$?
	sed "s/^/# $1: /" /tmp/table
	is "$code $(grep -c '^NOP by the kernel module' /tmp/table)" '0 1' "moe-bench ring --transport $1 comes to its end"
}

run() { # TEST LEAST
	before=$(counter submitted)
	began=$(cut -d. -f1 /proc/uptime)
	# By a pipe, since test-trace forbids its daemon to write long files, and that logs to where the test does.
	{
		"/test-$1" 2>&1
		echo $? >/tmp/code
	} | cat >/tmp/tap
	code=$(cat /tmp/code)
	sed 's/^/# /' /tmp/tap
	is "$code$(grep -c '^not ok' /tmp/tap)" 00 "test-$1: as by the ring"
	asked=$(($(counter submitted) - before))
	is "$([ $asked -ge "$2" ] && echo enough)" enough "test-$1: asked $asked times through the module, in $(($(cut -d. -f1 /proc/uptime) - began)) s"
	is "$(left requests) $(left clients)" '0 0' "test-$1: nothing is left in the module"
}

export MOE_TRANSPORT=kmod
start
is "$(/moe-bench ring --transport kmod --daemon $socket 2>&1 | grep -c 'serves no queue')" 1 'without the module a client is told so'
stop
insmod /moe_expert.ko
for part in $(echo "$TEST_CLIENTS" | tr , ' '); do
	case $part in
	restart)
		run restart 3000
		is "$([ "$(counter reissued)" -gt 0 ] && echo some)" some "the module issued $(counter reissued) requests again"
		;;
	session) run session 2000 ;;
	agree) run agree 1000 ;;
	shares) run shares 40 ;;
	group) run group 4 ;;
	push-fills | registrar)
		export MOE_TEST_DEVICE=cuda CUSIM_DELAY=0
		run "$part" 10
		unset MOE_TEST_DEVICE CUSIM_DELAY
		;;
	bench)
		start
		bench kmod
		bench kmod-ioctl
		stop
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
is "$(/moectl --socket $socket status | grep -c "serves a queue by $way:")" 1 "by $way"
stop
is "$(left queues)" 0 'an end in order ends the queue'
end
