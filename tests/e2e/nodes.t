#!/bin/sh
# SPDX-License-Identifier: MIT
#
# nodes - a daemon that sees two or three NUMA nodes has the same model in so many pool files: the same digest, the same
# scores to the last bit, whether the CPU computes or slots are filled from all of them, by either side.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"
# shellcheck source=tests/e2e/nodes.sh
. tests/e2e/nodes.sh

# serve NODES
serve() {
	serve_nodes "$1"
	"$moectl" --socket "$socket" models --json >"$dir/models.json"
	is "$(json "$dir/models.json" 'models.0.pools.#')" "$1" "$1 nodes: as many pool files"
	digest=$(json "$dir/models.json" models.0.digest)
	bytes=$(json "$dir/models.json" models.0.record_bytes)
}

all_scores() {
	scores
	echo "pull, tp 4 $(score --experts cache --mode full --slots 32 --fill pull --tp 4)"
	echo "push, tp 4 $(score --experts cache --mode full --slots 32 --tp 4)"
}

serve 1
one_digest=$digest
one_bytes=$bytes
all_scores >"$dir/one"
is "$(grep -c '[a-z0-9] [0-9]\.[0-9]' "$dir/one")" 7 'one node: seven scores'
stop_daemon
is $? 0 'the daemon ends with 0'
for nodes in 2 3; do
	serve $nodes
	is "$digest" "$one_digest" "$nodes nodes: the digest is that of one node"
	within "$bytes" "$one_bytes" $((one_bytes + nodes * 3 * 4096 * 2)) "$nodes nodes: a record takes no more room, but for whole units"
	all_scores >"$dir/several"
	diff "$dir/one" "$dir/several" >"$dir/diff"
	ok $? "$nodes nodes: the scores are those of one node, to the last bit" "$dir/diff"
	stop_daemon
	is $? 0 'the daemon ends with 0'
done
finish
