#!/bin/sh
# SPDX-License-Identifier: MIT
#
# daemon-in-guest - the first process of a machine that has the module, the daemon and the sample model: a daemon without a
# keeper is killed, and the next one has the pools from the module; a client without rights leases weights, is killed, and
# the daemon is told of it. TAP goes to the console.
# shellcheck source=tests/kmod/in-guest.sh
. /in-guest.sh
options='--isa ref --pages 2m'

# The first value of that name in a document.
value() { # NAME FILE
	sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$2" | head -n 1
}

# Of the document's part about the module.
of_module() { # NAME
	sed -n '/"module": {/,/}/p' /tmp/status >/tmp/module
	value "$1" /tmp/module
}

epoch() {
	/moectl --socket $socket models --json >/tmp/models
	value epoch /tmp/models
}

score() {
	/moe-worker score --model /tinymoe --daemon $socket --text /text --json --experts cpu >/tmp/score 2>>/tmp/log
	sed -n 's/.*"nll_per_token":\([0-9.]*\).*/\1/p' /tmp/score
}

# The module's NAME becomes VALUE in the daemon's status, which an event changes: what it is at last.
becomes() { # NAME VALUE
	for waited in 1 2 3 4 5 6 7 8 9 10 12 14 16 18 20; do
		/moectl --socket $socket status --json >/tmp/status 2>>/tmp/log
		[ "$(of_module "$1")" != "$2" ] || break
		sleep "$waited"
	done
	of_module "$1"
}

# A client of user 1000 that holds weights of a record: $client is its process, $held what it says.
lease() { # FILE TENSOR
	rm -f /tmp/lessee
	/lessee hold tinymoe "/tinymoe/$1" "$2" >/tmp/lessee &
	client=$!
	waited=0
	until [ -s /tmp/lessee ] || [ $waited = 60 ]; do
		waited=$((waited + 1))
		sleep 1
	done
	held=$(cat /tmp/lessee)
}

start
is $? 0 'without the module the daemon runs'
is "$(of_module state)" absent 'and says that it is absent'
/moectl --socket $socket status >/tmp/text
is "$(grep -c 'module.*absent.*modprobe' /tmp/text)" 1 'and what to do'
stop
is "$(/moe-expertd --socket $socket --module yes 2>&1 | grep -c 'Module=yes, but')" 1 'Module=yes: it does not start'

insmod /moe_expert.ko
start
is $? 0 'with the module it runs'
is "$(of_module state)" used 'and uses it'
pools=$(of_module pools)
is "$(counter pools)" "$pools" 'the module has the pools'
first=$(epoch)
is "$first" 1 'of the first epoch'
before=$(score)
is "$([ -n "$before" ] && echo scored)" scored "a worker's score ($before)"
is "$(counter submitted)" 0 'nothing of it by the module'
export MOE_TRANSPORT=kmod
is "$(score)" "$before" 'and the same score of one that asks through the module'
unset MOE_TRANSPORT
is "$([ "$(counter submitted)" -ge 6 ] && echo each) $(counter requests)" "each 0" "$(counter submitted) times for its 6 layers, all of which are answered"
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

chown 0:1000 /dev/moe-expert
chmod 660 /dev/moe-expert
lease model-00001-of-00002.safetensors model.layers.1.block_sparse_moe.experts.7.w2.weight
is "${held%% *} ${held##* }" "held $first" 'a client of another user leases a part of a record, which is as in the file'
is "$(becomes leases 1)" 1 'the daemon says so'
is "$(of_module leases_dropped)" 0 'and that none has ended with its holder'

kill -9 "$daemon"
wait "$daemon" 2>/dev/null
is "$(counter pools)" "$pools" 'kill -9: the module has them still'
is "$(rmmod moe_expert 2>/dev/null; lsmod | grep -c moe_expert)" 1 'and cannot be unloaded'
start
is $? 0 'the next daemon runs'
is "$(value weight_bytes_read /tmp/status)" 0 'and has read no weights'
is "$(value kept /tmp/status)" false 'without a keeper'
is "$(of_module models_taken)" 1 'its model came from the module'
is "$(epoch)" "$first" 'with its epoch'
is "$(score)" "$before" 'and the same score'
/moectl --socket $socket status >/tmp/text
is "$(grep -c "module.*keeps $pools pools with 1 leases" /tmp/text)" 1 'moectl status tells it, and of the lease, which goes on'
kill -9 "$client"
wait "$client" 2>/dev/null
is "$(becomes leases_dropped 1) $(of_module leases)" '1 0' 'kill -9 of the client: the module tells the daemon, the lease is gone'
/moectl --socket $socket status >/tmp/text
is "$(grep -c 'module.*with 0 leases.* 1 leases' /tmp/text)" 1 'moectl status tells that, too'

/moectl --socket $socket unload tinymoe >>/tmp/log 2>&1
is "$(counter pools)" 0 'unloaded: the module has none'
/moectl --socket $socket load /tinymoe >>/tmp/log 2>&1
is "$(counter pools)" "$pools" 'loaded again: it has them'
old=${held#held }
# Its two numbers are two arguments.
# shellcheck disable=SC2086
is "$(/lessee stale $old)" refused 'the pool that was unloaded is leased no more: ESTALE'
lease model-00002-of-00002.safetensors model.layers.4.block_sparse_moe.experts.31.w1.weight
new=${held#held }
is "${held%% *} ${held##* }" "held $(epoch)" 'a record of the new epoch is leased'
is "$(/lessee stale "${new% *}" "$first")" refused 'with the old epoch it is not: ESTALE'
kill -9 "$client"
wait "$client" 2>/dev/null
is "$(becomes leases_dropped 2) $(of_module leases)" '2 0' 'the daemon is told of its end'
stop
is "$(counter pools)" 0 'an end in order releases them'
end
