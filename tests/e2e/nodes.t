#!/bin/sh
# SPDX-License-Identifier: MIT
#
# nodes - a daemon that sees two or three NUMA nodes has the same model in so many pool files: the same digest, the same
# scores to the last bit, whether the CPU computes or slots are filled from all of them, by either side.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

pretend=$build/tests/pretend-nodes.so
real=$(CDPATH='' cd -- "$(dirname -- "$expertd")" && pwd)/moe-expertd
case $pretend in
/*) ;;
*) pretend=$PWD/$pretend ;;
esac

# serve NODES
serve() {
	printf '#!/bin/sh\nexec env PRETEND_NODES=%s LD_PRELOAD="%s" "%s" "$@"\n' "$1" "$pretend" "$real" >"$dir/expertd"
	chmod +x "$dir/expertd"
	expertd=$dir/expertd
	start_daemon --model "$sample"
	require $? "$1 nodes: the daemon serves the sample" "$dir/daemon.log"
	"$moectl" --socket "$socket" models --json >"$dir/models.json"
	is "$(json "$dir/models.json" 'models.0.pools.#')" "$1" "$1 nodes: as many pool files"
	digest=$(json "$dir/models.json" models.0.digest)
	bytes=$(json "$dir/models.json" models.0.record_bytes)
}

# score OPTION...: prints the score, all digits of it
score() {
	"$worker" score --model "$sample" --daemon "$socket" --text $sample/text.txt --limit 512 --window 64 --json "$@" \
		>"$dir/score.json" 2>"$dir/score.err" || return 1
	sed 's/.*"nll_per_token":\([0-9.]*\).*/\1/' "$dir/score.json"
}

# scores: what does not depend on how fast anything is
scores() {
	echo "cpu $(score --experts cpu)"
	echo "decode $(score --experts cpu --decode --limit 64)"
	echo "cpu, tp 2 $(score --experts cpu --tp 2)"
	echo "push $(score --experts cache --mode full --slots 32)"
	echo "pull $(score --experts cache --mode full --slots 32 --fill pull)"
	echo "pull, tp 4 $(score --experts cache --mode full --slots 32 --fill pull --tp 4)"
	echo "push, tp 4 $(score --experts cache --mode full --slots 32 --tp 4)"
}

serve 1
one_digest=$digest
one_bytes=$bytes
scores >"$dir/one"
is "$(grep -c '[a-z0-9] [0-9]\.[0-9]' "$dir/one")" 7 'one node: seven scores'
stop_daemon
is $? 0 'the daemon ends with 0'
for nodes in 2 3; do
	serve $nodes
	is "$digest" "$one_digest" "$nodes nodes: the digest is that of one node"
	within "$bytes" "$one_bytes" $((one_bytes + nodes * 3 * 4096 * 2)) "$nodes nodes: a record takes no more room, but for whole units"
	scores >"$dir/several"
	diff "$dir/one" "$dir/several" >"$dir/diff"
	ok $? "$nodes nodes: the scores are those of one node, to the last bit" "$dir/diff"
	stop_daemon
	is $? 0 'the daemon ends with 0'
done
finish
