# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2034,SC2154 # variables are for the scripts that source this, or of lib.sh
#
# nodes.sh - what scripts share that pretend a machine of several NUMA nodes (tests/e2e/pretend-nodes.c), after lib.sh: a
# daemon that sees them, and scores with all of their digits.

pretend=$build/tests/pretend-nodes.so
real=$(CDPATH='' cd -- "$(dirname -- "$expertd")" && pwd)/moe-expertd
case $pretend in
/*) ;;
*) pretend=$PWD/$pretend ;;
esac

# serve_nodes NODES OPTION...: a daemon that sees so many serves the sample.
serve_nodes() {
	printf '#!/bin/sh\nexec env PRETEND_NODES=%s LD_PRELOAD="%s" "%s" "$@"\n' "$1" "$pretend" "$real" >"$dir/expertd"
	chmod +x "$dir/expertd"
	expertd=$dir/expertd
	nodes=$1
	shift
	start_daemon --model "$sample" "$@"
	require $? "$nodes nodes: the daemon serves the sample${*:+, $*}" "$dir/daemon.log"
}

# score OPTION...: prints the score, all digits of it
score() {
	"$worker" score --model "$sample" --daemon "$socket" --text "$sample/text.txt" --limit 512 --window 64 --json "$@" \
		>"$dir/score.json" 2>"$dir/score.err" || return 1
	sed 's/.*"nll_per_token":\([0-9.]*\).*/\1/' "$dir/score.json"
}

# scores: five that do not depend on how fast anything is
scores() {
	echo "cpu $(score --experts cpu)"
	echo "decode $(score --experts cpu --decode --limit 64)"
	echo "cpu, tp 2 $(score --experts cpu --tp 2)"
	echo "push $(score --experts cache --mode full --slots 32)"
	echo "pull $(score --experts cache --mode full --slots 32 --fill pull)"
}
