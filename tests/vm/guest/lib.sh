# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2034 # the variables are for what main sources
#
# lib.sh - inside the machine: TAP to the results port, numbered on over both boots, and conditions that are waited for.

exec 3>/dev/virtio-ports/results
work=/moe/work
mkdir -p "$work"
cd "$work" || exit 1
count=$(cat count 2>/dev/null || echo 0)
patience=90 # seconds for what takes a second or two
unit=moe-expertd.service
socket=/run/moe-expertd/socket

say() { echo "$*" >&3; }
note() { say "# $*"; }
uptime_s() { cut -d . -f 1 /proc/uptime; }

# step NAME COMMAND...: ok when it succeeds; otherwise what it wrote is shown, and what the daemon last logged.
step() {
	count=$((count + 1))
	echo "$count" >count
	name=$1
	shift
	if "$@" >out 2>&1; then
		say "ok $count - $name"
		return
	fi
	say "not ok $count - $name"
	note "$*"
	tail -n 25 out | sed 's/^/#   /' >&3
	journalctl -q --no-pager -n 8 -o short-monotonic -u 'moe-expertd*' 2>/dev/null | sed 's/^/#   journal: /' >&3
	return 1
}

refuses() { # COMMAND...: it fails, and says why
	! "$@" >refused 2>&1 || {
		echo "$*: succeeded"
		return 1
	}
	cat refused
	[ -s refused ]
}

equal() { # FOUND EXPECTED
	[ "$1" = "$2" ] || {
		echo "found '$1', expected '$2'"
		return 1
	}
}

wait_for() { # COMMAND...
	until_s=$(($(uptime_s) + patience))
	until "$@" >waited 2>&1; do
		[ "$(uptime_s)" -lt "$until_s" ] || {
			echo "not within $patience s: $*"
			cat waited
			return 1
		}
		sleep 0.2
	done
}

property() { systemctl show -P "$1" "${2-$unit}"; }
has() { equal "$(property "$1" "${3-$unit}")" "$2"; } # PROPERTY VALUE [UNIT]
contains() { printf '%s\n' "$1" | grep -E -- "$2" >/dev/null || equal "$1" "/$2/"; }

# What the daemon says about itself, over its socket or the bus.
status() { moectl status --json | jq -r "$1"; }
