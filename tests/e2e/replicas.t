#!/bin/sh
# SPDX-License-Identifier: MIT
#
# replicas - with --replica-max a daemon that sees two or three NUMA nodes gives hot experts whole copies while it serves:
# the scores are those without, to the last bit, before, during and after; memory stays below the limit; kill -9 at any
# moment loses nothing and reads nothing again.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"
# shellcheck source=tests/e2e/nodes.sh
. tests/e2e/nodes.sh

child() { ps -o pid= --ppid "$daemon" | tr -d ' '; }

# serve NODES OPTION...
serve() {
	threads=$1
	shift
	serve_nodes "$threads" --threads "$threads" "$@"
}

# replicas NAME: of the model
replicas() {
	"$moectl" --socket "$socket" models --json >"$dir/models.json" && json "$dir/models.json" "models.0.replicas.$1"
}

# shellcheck disable=SC2317 # wait_for calls them
has_looked() {
	score --experts cpu >"$dir/again" || return 1
	echo "cpu $(cat "$dir/again")" >>"$dir/meanwhile"
	[ "$(replicas looks)" -ge "${1-1}" ]
}

# shellcheck disable=SC2317 # wait_for calls it
rests() { [ "$(replicas state)" = waits ]; }

# Each figure of copies that the table has: in Prometheus' text, in moectl's figures, and in the document, one value.
figures_agree() {
	wait_for rests
	"$moectl" --socket "$socket" stats --prometheus >"$dir/prometheus" 2>"$dir/err" &&
		"$moectl" --socket "$socket" stats --figures >"$dir/figures" 2>>"$dir/err" &&
		"$moectl" --socket "$socket" stats >"$dir/stats" 2>>"$dir/err"
	ok $? "$nodes nodes: stats in three forms" "$dir/err"
	sed -n 's/^\t{"\(moe_expertd_replica_[a-z_]*\)".*"replicas\.\([a-z_.]*\)".*/\1 \2/p' lib/metrics/families.c >"$dir/table"
	within "$(wc -l <"$dir/table")" 11 100 "$nodes nodes: figures of copies in the table"
	while read -r name key; do
		echo "$(sed -n "s/^$name{.*} //p" "$dir/prometheus") $(replicas "$key")" >"$dir/both"
		awk '{ off = $1 - $2; exit !(NF == 2 && off * off < 1e-12) }' "$dir/both"
		ok $? "$nodes nodes: $name is what the document says" "$dir/both"
		grep -q "^$name " "$dir/figures"
		ok $? "$nodes nodes: moectl's figures have $name"
	done <"$dir/table"
	grep -q 'copies of hot experts' "$dir/stats"
	ok $? "$nodes nodes: so does moectl stats" "$dir/stats"
}

# Of all nodes: experts that one of them alone computed.
whole() {
	"$moectl" --socket "$socket" status --json >"$dir/status.json"
	perl -MJSON::PP -e 'local $/; my ($n, $s) = (0, decode_json(<STDIN>));
		$n += $_->{whole} for @{$s->{cpu}{by_node}}; print $n' <"$dir/status.json"
}

# shellcheck disable=SC2317
is_again() {
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>/dev/null
}

# Work, until the plan has no line left and the last one to take one has died too.
# shellcheck disable=SC2317
all_have_died() {
	score --experts cpu >"$dir/again" || return 1
	echo "cpu $(cat "$dir/again")" >>"$dir/meanwhile"
	[ ! -s "$dir/plan" ] && [ "$(grep -c 'keeper: the daemon died' "$dir/daemon.log")" -ge 8 ]
}

serve 2
scores >"$dir/rows"
is "$(grep -c '[a-z0-9] [0-9]\.[0-9]' "$dir/rows")" 5 'without copies: five scores'
"$moectl" --socket "$socket" models --json >"$dir/models.json"
is "$(json "$dir/models.json" models.0.replicas)" null 'no copies unless they are asked for'
is "$(whole)" 0 'and no expert is one node'\''s alone'
stop_daemon
is $? 0 'the daemon ends with 0'

for nodes in 2 3; do
	limit=$((nodes * 8 * 1048576))
	serve $nodes --replica-max $limit
	is "$(replicas state) $(replicas bytes) $(replicas limit)" "waits 0 $limit" "$nodes nodes: no memory before there is heat"
	: >"$dir/meanwhile"
	wait_for has_looked
	has_looked 2
	sort -u "$dir/meanwhile" >"$dir/distinct"
	grep '^cpu [0-9]' "$dir/rows" | diff - "$dir/distinct" >"$dir/diff"
	ok $? "$nodes nodes: while copies were made the score stayed the same, to the last bit" "$dir/diff"
	within "$(replicas copies_made)" 1 100000 "$nodes nodes: copies were made" "$dir/models.json"
	within "$(replicas bytes)" 1 "$limit" "$nodes nodes: no more memory than allowed"
	within "$(replicas after.covered)" 0.1 1 "$nodes nodes: they are of experts that are asked for"
	is "$(replicas failed) $(replicas old_tables)" '0 0' "$nodes nodes: no copy failed, nothing is left of old ones"
	scores >"$dir/copies"
	diff "$dir/rows" "$dir/copies" >"$dir/diff"
	ok $? "$nodes nodes: all scores with copies are those without" "$dir/diff"
	within "$(whole)" 1 100000000 "$nodes nodes: experts were computed whole"
	"$moectl" --socket "$socket" models >"$dir/models.out"
	grep -q 'copies of hot experts' "$dir/models.out"
	ok $? "$nodes nodes: moectl models tells of them" "$dir/models.out"
	figures_agree
	stop_daemon
	is $? 0 'the daemon ends with 0'
done

serve 2 --replica-max 64K
grep -q 'no copies of hot experts: tinymoe: no room for a copy of one expert' "$dir/daemon.log"
ok $? 'a limit that is too low is said, and the daemon serves' "$dir/daemon.log"
is "cpu $(score --experts cpu)" "$(grep '^cpu [0-9]' "$dir/rows")" 'with the same score'
stop_daemon

# -- kills -----------------------------------------------------------------------------------------------------------

if have_proc; then
	# Each daemon kills itself at one step of a move (daemon/crash.h); the keeper counts none of these deaths.
	printf '%s\n' 'copying 1' 'copying 40' 'copied 1' 'copied 23' 'checked 1' 'checked 4' 'moved 1' 'moved 5' >"$dir/plan"
	export MOE_CRASH_PLAN="$dir/plan"
	serve 2 --keep --replica-max 16M
	: >"$dir/meanwhile"
	wait_for all_have_died
	ok $? 'eight daemons died at eight steps of a move' "$dir/daemon.log"
	wait_for has_looked
	sort -u "$dir/meanwhile" >"$dir/distinct"
	grep '^cpu [0-9]' "$dir/rows" | diff - "$dir/distinct" >"$dir/diff"
	ok $? 'meanwhile and afterwards: the same score, to the last bit' "$dir/diff"
	is "$(grep -c 'by MOE_CRASH_PLAN: .* at .\(copying\|copied\|checked\|moved\)' "$dir/daemon.log")" 8 'one after the other'
	is "$(replicas failed) $(replicas old_tables)" '0 0' 'the one that lives has made all its copies'
	stop_daemon
	is $? 0 'the daemon ends with 0'

	export MOE_CRASH_PLAN=/dev/null # and at any moment
	serve 2 --keep --replica-max 16M
	: >"$dir/meanwhile"
	for kill in 1 2 3 4 5 6 7 8; do
		has_looked 1
		sleep "0.0$kill"
		kill -9 "$(child)" 2>/dev/null
		wait_for is_again
	done
	sort -u "$dir/meanwhile" >"$dir/distinct"
	grep '^cpu [0-9]' "$dir/rows" | diff - "$dir/distinct" >"$dir/diff"
	ok $? 'killed eight times while copies were made: the same score, to the last bit' "$dir/diff"
	wait_for has_looked
	within "$(replicas copies_made)" 1 100000 'its successor makes copies again'
	within "$(replicas bytes)" 1 $((16 * 1048576)) 'in no more memory'
	"$moectl" --socket "$socket" status --json >"$dir/status.json"
	is "$(json "$dir/status.json" weight_bytes_read)" 0 'no weights were read again'
	stop_daemon
	is $? 0 'the daemon ends with 0'
else
	skip 'no /proc: the keeper'\''s child is not found'
fi
finish
