# SPDX-License-Identifier: MIT
# shellcheck shell=sh
#
# bench-common - what the bench scripts share: they source it before anything else, and are in the tree's top folder then.

typed_in=$PWD
cd "$(dirname -- "$0")/.." || exit
build=${MOE_BUILD:-build}

# usage LINE: what the script says of itself, to this line.
usage() { sed -n "4,$1s/^# \{0,1\}//p" "scripts/$(basename -- "$0")"; }

# A path as who typed it meant it.
typed() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$typed_in/$1" ;; esac }

# random_model NAME LAYERS HIDDEN INTER EXPERTS TOPK: in $build, made once
random_model() {
	[ ! -f "$build/$1/config.json" ] || return 0
	echo "$(basename "$0" .sh): making a random model in $build/$1"
	"$build/tools/moe-mkmodel" --family qwen3_moe --layers "$2" --hidden "$3" --inter "$4" --experts "$5" --topk "$6" \
		--heads 8 --kv-heads 2 --head-dim 64 --vocab 256 --shards 4 --out "$build/$1"
}

# A private daemon, one at a time, whose socket and log are in $dir.
daemon=
private_daemons() {
	dir=$(mktemp -d "${TMPDIR:-/tmp}/moe-bench.XXXXXX")
	export MOE_EXPERTD_SOCKET="$dir/socket"
	trap 'daemon_end; rm -rf "$dir"' EXIT
	trap 'exit 130' INT TERM
}

# daemon_start OPTION...: false if it does not become ready
daemon_start() {
	rm -f "$dir/ready" && mkfifo "$dir/ready"
	"$build/daemon/moe-expertd" --socket "$dir/socket" --ready-fd 3 "$@" 3>"$dir/ready" 2>"$dir/log" &
	daemon=$!
	read -r _ <"$dir/ready"
}

daemon_end() {
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
	[ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
	daemon=
}
