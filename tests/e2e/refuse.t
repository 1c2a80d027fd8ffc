#!/bin/sh
# SPDX-License-Identifier: MIT
#
# refuse - wrong input ends in one line that names file, field, found and expected, in an exit code that is not 0, and
# in nothing else: no daemon, no socket, no memory is left behind, and a daemon that runs keeps serving.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

shard=model-00001-of-00002.safetensors

# refused CODE NAME WORDS... -- COMMAND...: the command ends in time with CODE and its text has all WORDS (patterns).
refused() {
	expected=$1 name=$2
	shift 2
	patterns=
	while [ "$1" != -- ]; do
		patterns="$patterns$1
"
		shift
	done
	shift
	timeout 30 "$@" >"$dir/out" 2>&1
	is $? "$expected" "$name: exit code" || sed 's/^/#   /' "$dir/out"
	printf '%s' "$patterns" | while read -r pattern; do
		grep -qiE -- "$pattern" "$dir/out" || echo "$pattern"
	done >"$dir/lacks"
	if [ -s "$dir/lacks" ]; then
		echo '#   the text:' >>"$dir/lacks"
		cat "$dir/out" >>"$dir/lacks"
		ok 1 "$name: says what, where, found and expected" "$dir/lacks"
	else
		ok 0 "$name: says what, where, found and expected"
	fi
}

# The sample with one file changed: the others are links, as in a download cache.
folder() { # NAME
	mkdir "$dir/$1" || exit 1
	ln -s "$root/$sample"/* "$dir/$1/"
	echo "$dir/$1"
}

# Models that are wrong: refused at start, and by a daemon that runs.
wrong_models() {
	for what in truncated overlap range header dtype shape json extra; do
		path=$(folder $what)
		rm "$path/$shard"
		tests/e2e/damage.pl $what "$sample/$shard" "$path/$shard" >"$dir/tensor" || exit 1
		tensor=$(sed 's/[.]/[.]/g' "$dir/tensor")
		case $what in
		truncated) set -- 'data_offsets|header length' ;;
		overlap) set -- "$tensor" overlap ;;
		range) set -- "$tensor" data_offsets range ;;
		header) set -- 'header length' 1099511627776 ;;
		dtype) set -- "$tensor" dtype F5_ODD ;;
		shape) set -- "$tensor" shape '64, 256' '128, 128' ;;
		json) set -- 'line [0-9]+' 'JSON' ;;
		extra) set -- '64 bytes' 'end' ;;
		esac
		wrong_model "$what" "$path" "$shard" "$@"
	done

	path=$(folder missing-shard)
	rm "$path/$shard"
	wrong_model 'missing shard' "$path" "$shard" missing

	path=$(folder config)
	rm "$path/config.json"
	sed 's/"num_local_experts": 32/"num_local_experts": 64/' $sample/config.json >"$path/config.json"
	wrong_model 'config with more experts than the shards' "$path" 'experts[.]32[.]' missing '0 to 63'

	path=$(folder config-hidden)
	rm "$path/config.json"
	sed 's/"hidden_size": 128/"hidden_size": 256/' $sample/config.json >"$path/config.json"
	wrong_model 'config with another hidden size' "$path" "$shard" shape '128, 128' '128, 256' hidden_size

	path=$(folder config-layers)
	rm "$path/config.json"
	sed 's/"num_hidden_layers": 6/"num_hidden_layers": 5/' $sample/config.json >"$path/config.json"
	wrong_model 'config with fewer layers than the shards' "$path" 'layers[.]5[.]' 'layer 5' '0 to 4' num_hidden_layers

	path=$(folder config-experts)
	rm "$path/config.json"
	sed 's/"num_local_experts": 32/"num_local_experts": 16/' $sample/config.json >"$path/config.json"
	wrong_model 'config with fewer experts than the shards' "$path" 'experts[.]16[.]' 'expert 16' '16 experts'

	path=$(folder config-type)
	rm "$path/config.json"
	sed 's/"model_type": "mixtral"/"model_type": "nosuch"/' $sample/config.json >"$path/config.json"
	wrong_model 'unknown model_type' "$path" config.json model_type nosuch mixtral

	path=$(folder config-missing)
	rm "$path/config.json"
	wrong_model 'no config.json' "$path" config.json

	wrong_model 'no such folder' "$dir/nosuch" nosuch
}

wrong_model() { # NAME FOLDER WORDS...
	name=$1 path=$2
	shift 2
	refused 1 "$name" "$@" -- "$expertd" --socket "$dir/other" --model "$path"
	[ ! -e "$dir/other" ]
	ok $? "$name: no socket is left"
	refused 1 "$name, moectl load" "$@" -- "$moectl" --socket "$socket" load "$path"
}

memory_of() { # of the daemon, in KiB, without files that it only reads
	awk '/^(RssAnon|RssShmem|HugetlbPages):/ { sum += $2 } END { print sum }' "/proc/$daemon/status"
}

files_of() { find "/proc/$daemon/fd" -mindepth 1 2>/dev/null | wc -l; }

sockets_of() { find "/proc/$daemon/fd" -mindepth 1 -lname 'socket:*' 2>/dev/null | wc -l; }

# Called by wait_for.
# shellcheck disable=SC2317
has_files() { [ "$(files_of)" = "$1" ]; }
# shellcheck disable=SC2317
has_sockets() { [ "$(sockets_of)" = "$1" ]; }
# shellcheck disable=SC2317
has_huge() { [ "$(huge_free)" = "$1" ]; }

huge_free() {
	cat /sys/kernel/mm/hugepages/hugepages-*/free_hugepages /sys/kernel/mm/hugepages/hugepages-*/nr_hugepages \
		2>/dev/null | tr '\n' ' '
}

# Another user, when this one is root; prints nothing when there is no way.
as_nobody() {
	if [ "$(id -u)" != 0 ]; then
		echo env
	elif command -v setpriv >/dev/null 2>&1; then
		echo setpriv --reuid=65534 --regid=65534 --clear-groups
	fi
}

huge_before=$(huge_free)
start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"
sockets=$(sockets_of)                                            # without a connection
"$moectl" --socket "$socket" load "$dir/nosuch" >"$dir/out" 2>&1 # what is made once is made now
if have_proc; then
	wait_for has_sockets "$sockets"
	files=$(files_of)
	memory=$(memory_of)
fi

wrong_models

refused 1 'name taken' tinymoe loaded -- "$moectl" --socket "$socket" load "$root/$sample"
long=$(printf '%064d' 0)
for given in 'two
lines' "$(printf 'a\033[2Jb')" "$(printf 'a\302\233b')" "$(printf 'a\177')" a/b "$long" "$(printf 'caf\351')"; do
	case $given in
	a/b) set -- 'a/b' 'no slash' ;;
	"$long") set -- '(at most|1 to) 63' ;;
	caf*) set -- 'not UTF-8' ;;
	*) set -- 'control character .0x' ;;
	esac
	shown=$(printf %s "$given" | tr -cd 'a-z0-9/' | cut -c 1-12)
	refused 1 "the name $shown" "$@" 'name' -- "$moectl" --socket "$socket" load "$root/$sample" --name "$given"
	refused 2 "the name $shown at the start" "$@" '--name' -- \
		"$expertd" --socket "$dir/other" --model "$sample" --name "$given"
	! grep -q "$(printf '[\033\177]')" "$dir/out"
	ok $? "the name $shown: nothing that a terminal would obey is printed"
done
path=$(folder twin)
refused 1 'two models of one name' "'twice'" 'another model of the start' -- \
	"$expertd" --socket "$dir/other" --model "$sample" --name twice --model "$path" --name twice
! grep -q loading "$dir/out"
ok $? 'before one of them is loaded' "$dir/out"
printf '[Models]\nModel=%s\nModel=tinymoe:%s\n' "$root/$sample" "$path" >"$dir/conf"
refused 1 'two of one name in a file' "$dir/conf:3: Model=tinymoe:$path" "$dir/conf:2" -- \
	"$expertd" --config "$dir/conf" --socket "$dir/other"
printf '[Models]\n\nModel=%s\n' "$dir/nosuch" >"$dir/conf"
refused 1 'no such folder, in a file' "$dir/conf:3: Model=$dir/nosuch: a folder" -- \
	"$expertd" --config "$dir/conf" --socket "$dir/other"
refused 1 'unload of an unknown model' nosuch tinymoe -- "$moectl" --socket "$socket" unload nosuch
refused 1 'second daemon on the socket' "$socket" another "$daemon" -- "$expertd" --socket "$socket" --model "$sample"
refused 1 'too little memory' '--memory-max|memory' -- \
	"$expertd" --socket "$dir/other" --model "$sample" --memory-max 1M
[ ! -e "$dir/other" ]
ok $? 'too little memory: no socket is left'
gigantic=/sys/kernel/mm/hugepages/hugepages-1048576kB
if [ "$(cat $gigantic/free_hugepages 2>/dev/null || echo 0)" = 0 ]; then
	# What to type to get some is only known where the system shows them.
	if [ -d $gigantic ]; then set -- ${gigantic##*/}; else set --; fi
	refused 1 '1 GiB pages where none are' '1 ?g' "$@" -- \
		"$expertd" --socket "$dir/other" --model "$sample" --pages 1g
else
	skip 'there are 1 GiB pages here'
fi

refused 1 'unknown model name' nosuch tinymoe -- "$bench" attach --hold 1 --seconds 0.1 --model nosuch --daemon "$socket"
refused 1 'no daemon' "$dir/nosuch" -- "$moectl" --socket "$dir/nosuch" status

for program in "$expertd" "$moectl" "$worker"; do
	refused 2 "${program##*/}: unknown option" 'help|usage' -- "$program" --no-such-option
done
refused 2 'pages of an unknown size' pages 3m 1g -- "$expertd" --pages 3m

# level_refused LEVEL WORDS: by every program whose kernels have a level.
level_refused() {
	refused 2 "moe-expertd: level $1" "--isa $1" "$2" -- "$expertd" --isa "$1"
	refused 2 "moe-worker: level $1" "--isa $1" "$2" -- \
		"$worker" generate --model "$sample" --prompt a --isa "$1"
	refused 2 "moe-bench: level $1" "--isa $1" "$2" -- "$bench" ffn --isa "$1"
}

level_refused sse9 'auto, ref, avx2, avx512 or amx expected'
refused 2 'moectl doctor: level sse9' 'auto, ref, avx2, avx512 or amx expected' -- "$moectl" doctor --isa sse9
for level in ref avx2 avx512 amx; do
	if "$expertd" --isa $level --version >/dev/null 2>&1; then
		"$moectl" doctor --isa $level >"$dir/doctor" 2>&1
		grep -q "^ok  *--isa  *$level runs here: $level" "$dir/doctor"
		ok $? "moectl doctor: level $level runs here" "$dir/doctor"
	else
		level_refused $level 'this machine does not offer|refused this process'
		refused 1 "moectl doctor: level $level" "problem +--isa +$level: " '-> --isa auto' -- \
			"$moectl" doctor --isa $level
	fi
done
refused 2 'a worker: an option of the other command' 'text is not an option of generate' -- \
	"$worker" generate --model "$sample" --prompt a --text "$sample/text.txt"
refused 2 'a worker: an option of the first command' 'prompt is not an option of score' -- \
	"$worker" score --model "$sample" --text "$sample/text.txt" --prompt a
refused 2 'a worker: an option of the daemon that it would start' 'isa is for a private daemon' -- \
	"$worker" generate --model "$sample" --prompt a --daemon "$socket" --isa ref
refused 2 'a worker: a socket without a name' 'daemon: found .., expected a socket' -- \
	"$worker" generate --model "$sample" --prompt a --daemon ''
refused 2 'a worker: a number of copies' 'cost, stairs or a number' -- \
	"$worker" generate --model "$sample" --prompt a --n-copy many
refused 2 'moectl: a socket without a name' 'socket names no socket' -- "$moectl" --socket '' status
refused 2 'moectl: a number beyond its limits' 'kept' '0 to 1 expected' -- "$moectl" simulate "$dir/nosuch" --param kept=2
refused 2 'a worker without a verb' 'help|usage' -- "$worker"
refused 2 'unknown verb' nosuch -- "$moectl" nosuch

# Word splitting is meant: a command with its options.
# shellcheck disable=SC2046
set -- $(as_nobody)
if [ $# -gt 0 ]; then
	chmod 755 "$dir"
	chmod 0 "$socket"
	if [ "$1" = env ] || "$@" test -x "$moectl"; then
		refused 1 'a socket without permission' "$socket" -- "$@" "$moectl" --socket "$socket" status
	else
		skip 'another user cannot reach the programs here'
	fi
	chmod 600 "$socket"
	if [ "$1" = env ] || "$@" test -x "$expertd"; then
		mkdir -p "$dir/theirs" "$dir/secret/model" "$dir/shut"
		chmod 777 "$dir/theirs"
		ln -s "$root/$sample"/* "$dir/secret/model/"
		rm "$dir/secret/model/config.json"
		cp $sample/config.json "$dir/secret/model/"
		chmod 0 "$dir/secret/model/config.json"
		chmod 555 "$dir/shut"
		refused 1 'a file that the daemon may not read' config.json 'uid [0-9]+' setfacl -- \
			"$@" "$expertd" --socket "$dir/theirs/socket" --model "$dir/secret/model"
		chmod 0 "$dir/secret"
		refused 1 'a folder that the daemon may not enter' "$dir/secret/model" 'uid [0-9]+' setfacl -- \
			"$@" "$expertd" --socket "$dir/theirs/socket" --model "$dir/secret/model"
		refused 1 'a socket in a folder of others' "$dir/shut" 'uid [0-9]+' '--socket PATH' -- \
			"$@" "$expertd" --socket "$dir/shut/socket"
		chmod 755 "$dir/secret"
	else
		skip 'another user cannot reach the daemon here'
	fi
else
	skip 'no setpriv here to become another user'
fi

# Another model under the same folder name and with the same shapes: its weights are not those that are served.
mkdir "$dir/other"
"$mkmodel" --family mixtral --layers 6 --hidden 128 --inter 128 --experts 32 --topk 4 --heads 4 --kv-heads 2 \
	--head-dim 32 --max-position 256 --out "$dir/other/tinymoe" >"$dir/mkmodel.log" 2>&1
refused 1 'other weights under the same name' 'other weights' 'layer' 'moectl load' -- \
	"$worker" score --model "$dir/other/tinymoe" --text $sample/text.txt --experts cpu --limit 256 --daemon "$socket"

if have_proc; then
	wait_for have_sessions 0
	wait_for has_files "$files" # the last connection may not have been closed yet
	is "$(files_of)" "$files" 'the daemon has as many open files as before' ||
		find "/proc/$daemon/fd" -mindepth 1 -printf '#   %f %l\n'
	if [ -n "${MOE_SANITIZED-}" ]; then
		skip 'a sanitizer keeps freed memory: it cannot be compared'
	else
		within "$(memory_of)" 0 $((memory + 2048)) "the daemon has no more memory than before, in KiB ($memory)"
	fi
else
	skip 'no /proc here: memory and open files cannot be counted'
fi
"$worker" score --model "$sample" --text $sample/text.txt --experts cpu --limit 256 --daemon "$socket" --json \
	>"$dir/score.json" 2>"$dir/err"
ok $? 'after all that the daemon serves' "$dir/err"
stop_daemon
is $? 0 'the daemon ends with 0'
[ ! -e "$socket" ]
ok $? 'it takes its socket with it'
wait_for has_huge "$huge_before"
is "$(huge_free)" "$huge_before" 'no huge page is left in use'
finish
