# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# clients.sh - a model is loaded and served: who may do what, and that the right words come out.

useradd --groups moe-expertd member
useradd stranger
as() { # USER COMMAND...
	user=$1
	shift
	runuser -u "$user" -- "$@"
}

rungs() { moectl models --json | jq -r '[.models[0] | .. | .rung? // empty] | unique | join(" ")'; }

step 'a stranger cannot connect' refuses as stranger moectl status
step 'a member of the group can' as member moectl status
step 'but loads nothing' refuses as member moectl load /srv/tinymoe
note "$(head -n 1 refused)"
step 'moectl load as root' moectl load /srv/tinymoe || return 1
step 'by threads that step back' refuses contains "$(journalctl -q -u "$unit" -o cat)" 'cannot step back'
step 'the model is there' equal "$(moectl models --json | jq -r '.models[].name')" tinymoe
step 'on huge pages' equal "$(rungs)" 2m
step 'its bytes are counted' contains "$(status .weight_bytes_read)" '^[1-9][0-9]{6,}$'
step 'the store keeps it' contains "$(property NFileDescriptorStore)" '^[1-9]'

words='specifies the content' # of REFERENCE.json
generate() {
	as member moe-worker generate --model /srv/tinymoe --experts "$1" --daemon "$socket" --tokens 22 \
		--prompt "$(printf 'NAME\n       expertd - ')" >said && grep "$words" said
}
step 'a worker writes what the reference does, experts on the pool' generate cpu
step 'and from its cache' generate cache
step 'moectl stats has them' contains "$(moectl stats --json | jq -r '.models[0].layers | length')" '^6$'
step 'moectl stats is readable' moectl stats
step 'moectl models' moectl models
step 'moectl sessions' moectl sessions
step 'moectl config' moectl config
moectl doctor >says 2>&1
step 'moectl doctor comes to an end' contains "$?" '^[01]$'
sed 's/^/# doctor: /' says >&3
