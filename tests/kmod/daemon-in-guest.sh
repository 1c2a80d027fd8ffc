#!/bin/sh
# SPDX-License-Identifier: MIT
#
# daemon-in-guest - the first process of a machine that has the module, the daemon and the sample model: a daemon without a
# keeper is killed, and the next one has the pools from the module. TAP goes to the console.
B=/bin/busybox
"$B" --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs tmp /tmp
ip link set lo up 2>/dev/null
count=0
failed=0
socket=/tmp/socket

is() { # FOUND EXPECTED NAME
	count=$((count + 1))
	if [ "$1" = "$2" ]; then
		echo "ok $count - $3"
	else
		failed=$((failed + 1))
		echo "not ok $count - $3"
		echo "#   found $1, expected $2"
		tail -n 5 /tmp/log | sed 's/^/#   /'
	fi
}

start() { # OPTION...
	/moe-expertd --socket $socket --model /tinymoe --threads 1 --isa ref "$@" >>/tmp/log 2>&1 &
	daemon=$!
	waited=0
	until /moectl --socket $socket status --json >/tmp/status 2>/dev/null && grep -q '"state": "ready"' /tmp/status; do
		waited=$((waited + 1))
		kill -0 "$daemon" 2>/dev/null && [ $waited -lt 120 ] || return 1
		sleep 1
	done
}

# The first value of that name in a document.
value() { # NAME FILE
	sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$2" | head -n 1
}

# Of the document's part about the module.
of_module() { # NAME
	sed -n '/"module": {/,/}/p' /tmp/status >/tmp/module
	value "$1" /tmp/module
}

counter() { # NAME
	cat "/sys/class/misc/moe-expert/$1"
}

epoch() {
	/moectl --socket $socket models --json >/tmp/models
	value epoch /tmp/models
}

score() {
	/moe-worker score --model /tinymoe --daemon $socket --text /text --json --experts cpu >/tmp/score 2>>/tmp/log
	sed -n 's/.*"nll_per_token":\([0-9.]*\).*/\1/p' /tmp/score
}

start --pages 2m
is $? 0 'without the module the daemon runs'
is "$(of_module state)" absent 'and says that it is absent'
/moectl --socket $socket status >/tmp/text
is "$(grep -c 'module.*absent.*modprobe' /tmp/text)" 1 'and what to do'
kill "$daemon"
wait "$daemon"
is "$(/moe-expertd --socket $socket --module yes 2>&1 | grep -c 'Module=yes, but')" 1 'Module=yes: it does not start'

insmod /moe_expert.ko
start --pages 2m
is $? 0 'with the module it runs'
is "$(of_module state)" used 'and uses it'
pools=$(of_module pools)
is "$(counter pools)" "$pools" 'the module has the pools'
first=$(epoch)
is "$first" 1 'of the first epoch'
before=$(score)
is "$([ -n "$before" ] && echo scored)" scored "a worker's score ($before)"
/moe-expertd --socket /tmp/other --threads 1 >/tmp/second 2>&1 &
second=$!
waited=0
until /moectl --socket /tmp/other status >/tmp/text 2>/dev/null || [ $waited = 60 ]; do
	waited=$((waited + 1))
	sleep 1
done
is "$(grep -c 'module.*busy' /tmp/text)" 1 'a second daemon of the same user leaves it alone'
kill "$second"
wait "$second"
is "$(counter pools)" "$pools" 'and releases nothing'

kill -9 "$daemon"
wait "$daemon" 2>/dev/null
is "$(counter pools)" "$pools" 'kill -9: the module has them still'
is "$(rmmod moe_expert 2>/dev/null; lsmod | grep -c moe_expert)" 1 'and cannot be unloaded'
start --pages 2m
is $? 0 'the next daemon runs'
is "$(value weight_bytes_read /tmp/status)" 0 'and has read no weights'
is "$(value kept /tmp/status)" false 'without a keeper'
is "$(of_module models_taken)" 1 'its model came from the module'
is "$(epoch)" "$first" 'with its epoch'
is "$(score)" "$before" 'and the same score'
/moectl --socket $socket status >/tmp/text
is "$(grep -c "module.*keeps $pools pools" /tmp/text)" 1 'moectl status tells it'

/moectl --socket $socket unload tinymoe >>/tmp/log 2>&1
is "$(counter pools)" 0 'unloaded: the module has none'
/moectl --socket $socket load /tinymoe >>/tmp/log 2>&1
is "$(counter pools)" "$pools" 'loaded again: it has them'
kill "$daemon"
wait "$daemon"
is "$(counter pools)" 0 'an end in order releases them'
rmmod moe_expert
is "$(lsmod | grep -c moe_expert)" 0 'and the module can go'
echo "1..$count"
echo "kmod: exit $failed"
poweroff -f
