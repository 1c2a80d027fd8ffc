#!/bin/sh
# SPDX-License-Identifier: MIT
#
# first-hour - what somebody meets who has just built this: the commands of the README, `moectl top` on a terminal of
# 80 x 24, and the mistakes that everybody makes, each of which is answered with the way out.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'needs /proc'
unset MOE_EXPERTD_SOCKET

# -- the README ---------------------------------------------------------------------------------------------------

# Its commands "By hand", with this test's socket and build folder; comparing with oneDNN is no part of a first hour.
sed -n '/^build\/daemon/,/^```/p' README.md | sed -e '/^```/d' -e '/moe-bench/d' -e 's/ *# .*//' \
	-e "s,/tmp/moe\\b,$socket,g" -e "s,\\bbuild/,$build/,g" >"$dir/readme"
sed -n '1{s/ &$//;p;}' "$dir/readme" >"$dir/first"
sed -e 1d "$dir/readme" >"$dir/rest"
is "$(wc -l <"$dir/first")$(grep -c . "$dir/rest")" 14 'the README starts a daemon, then says three things on four lines' "$dir/readme"
# One process, to be ended: exec.
sh -c "exec $(cat "$dir/first")" >"$dir/daemon.log" 2>&1 &
daemon=$!
started="$started $daemon"
# shellcheck disable=SC2317 # wait_for calls it
ready() { grep -q '^moe-expertd: ready' "$dir/daemon.log"; }
wait_for ready
require $? 'the daemon of the README says when it is ready' "$dir/daemon.log"
sh -e "$dir/rest" >"$dir/out" 2>&1
ok $? 'the commands of the README work' "$dir/out"
grep -q '^The daemon [a-z]' "$dir/out"
ok $? 'the model writes words' "$dir/out"
grep -q 'adds up$' "$dir/out" && grep -q '^model tinymoe' "$dir/out"
ok $? 'and statistics stand below it' "$dir/out"

# -- top, 80 x 24 -------------------------------------------------------------------------------------------------

"$worker" score --daemon "$socket" --model "$sample" --text "$sample/text.txt" --decode >"$dir/score" 2>&1 &
scorer=$!
started="$started $scorer"
if command -v script >/dev/null 2>&1 && "$moectl" top --help | grep -q screen; then
	mkfifo "$dir/keys"
	TERM=vt100 script -q -c "stty rows 24 cols 80; exec '$moectl' --socket '$socket' top --watch=0.2" "$dir/screen" \
		<"$dir/keys" >"$dir/screen.out" 2>&1 &
	screen=$!
	started="$started $screen"
	exec 9>"$dir/keys"
	# shellcheck disable=SC2317 # wait_for calls it
	shown() { grep -aq "$scorer" "$dir/screen.out" && grep -aq 'decode' "$dir/screen.out"; }
	wait_for shown
	ok $? 'top shows the worker on a screen of 80 x 24'
	printf q >&9
	wait "$screen"
	is $? 0 'q leaves it'
	exec 9>&-
	forget "$screen"
	# Who addresses a column or a row that is not there has not looked at the terminal.
	perl -0777 -ne 'exit(grep { my ($r, $c) = /(\d+);(\d+)/; $r > 24 || $c > 80 } /\e\[\d+;\d+H/g ? 1 : 0)' "$dir/screen.out"
	ok $? 'and nothing is beyond it'
else
	skip 'top: script is not installed'
fi
kill "$scorer"
wait "$scorer" 2>/dev/null
forget "$scorer"

# -- mistakes -----------------------------------------------------------------------------------------------------

# mistake CODE WORDS COMMAND...: fails with the code, and says the words, which are the way out.
mistake() {
	code=$1 words=$2
	shift 2
	"$@" >"$dir/said" 2>&1 </dev/null
	found=$?
	[ $found = "$code" ] && grep -qF -- "$words" "$dir/said"
	ok $? "'$words'" "$dir/said" || echo "#   exit code $found, $code expected, of: $*"
}

if [ -e /run/moe-expertd/socket ]; then
	skip 'the service runs on this machine: the default socket is taken'
else
	mistake 1 'systemctl start moe-expertd' "$moectl" status
fi
mistake 1 "start one with 'moe-expertd --socket $dir/wrong" "$moectl" --socket "$dir/wrong" status
mistake 1 "start one with 'moe-expertd --socket $dir/wrong" "$worker" generate --daemon "$dir/wrong" --model "$sample" --prompt x
as_other='setpriv --reuid 65534 --regid 65534 --clear-groups'
if [ "$(id -u)" != 0 ] || ! command -v setpriv >/dev/null 2>&1; then
	skip 'another user: neither root nor setpriv'
elif ! $as_other test -x "$(realpath "$moectl")"; then
	skip 'another user cannot reach the programs here'
else
	# Word splitting is meant.
	# shellcheck disable=SC2086
	mistake 1 'usermod -aG' $as_other "$(realpath "$moectl")" --socket "$socket" status
fi
mistake 2 'is status meant?' "$moectl" --socket "$socket" satus
mistake 2 'is stats meant?' "$moectl" --socket "$socket" stat
mistake 2 'see moectl --help' "$moectl" --socket "$socket" frobnicate
mistake 2 'trace show does not take --to' "$moectl" trace show "$dir/no-such" --to json
mistake 2 'trace show does not take --seconds' "$moectl" trace show "$dir/no-such" --seconds 3
mistake 2 'trace stop does not take --json' "$moectl" --socket "$socket" trace stop --json
mistake 2 'trace stop does not take --seconds' "$moectl" --socket "$socket" trace stop --seconds 4
mistake 2 'at most 107 bytes' "$moectl" --socket "$dir/$(printf '%0120d' 0)" status
mistake 1 'is no socket; name the daemon' "$moectl" --socket "$dir" status
mistake 2 'no policy has it' "$moectl" simulate tests/data/cache.json --param foo=1
mistake 1 'No such file' "$moectl" config --root "$dir/no-such"
mistake 2 'expected for a folder one of' "$mkmodel" quantize "$sample" "$dir/quantized" --format nosuch
mistake 2 'No such file' "$expertd" --config "$dir/no-such"
mistake 2 'no slash expected' "$expertd" --socket "$dir/try" --model "$sample" --name a/b
mistake 2 "--push-cuda '0': yes, no, or seconds" "$expertd" --socket "$dir/try" --push-cuda=0
mistake 2 'original, static' "$worker" score --model "$sample" --text "$dir/no-such" --policy foo
mistake 2 'see moectl --help' "$moectl" --sokcet "$socket" status
mistake 2 'load PATH [--name NAME]' "$moectl" --socket "$socket" load
mistake 2 'see moe-expertd --help' "$expertd" --sokcet "$dir/s"
mistake 2 'expected generate or score' "$worker" generat
mistake 2 'see moe-worker --help' "$worker" generate --model "$sample" --prompt x --solts 3
mistake 2 '--model DIR is missing' "$worker" generate --prompt x
mistake 1 'a folder with config.json and safetensors files, or a GGUF file, expected' "$moectl" --socket "$socket" load "$dir/no-such"
mistake 1 '(loaded: tinymoe)' "$moectl" --socket "$socket" unload tiny
mistake 1 'unload it or give another name (--name)' "$moectl" --socket "$socket" load "$sample"
mistake 1 'stop it or use --socket' "$expertd" --socket "$socket"
mistake 1 'does its folder exist?' "$expertd" --socket "$dir/no-such/socket"

# A daemon that is to refuse.
try=$dir/try
mistake 1 'a folder with config.json and safetensors files, or a GGUF file, expected' "$expertd" --socket "$try" --model "$dir/no-such"
mkdir "$dir/empty"
mistake 1 'the folder of a model, as published on Hugging Face?' "$expertd" --socket "$try" --model "$dir/empty"
echo '{"model_type": "llama"}' >"$dir/empty/config.json"
mistake 1 'expected a family that is served: mixtral' "$expertd" --socket "$try" --model "$dir/empty"
cp -r "$sample" "$dir/part"
rm "$dir/part/model-00002-of-00002.safetensors"
mistake 1 'is the download complete?' "$expertd" --socket "$try" --model "$dir/part"
head -c 1000 "$sample/model-00002-of-00002.safetensors" >"$dir/part/model-00002-of-00002.safetensors"
mistake 1 'is it truncated?' "$expertd" --socket "$try" --model "$dir/part"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >"$dir/part/model-00002-of-00002.safetensors"
mistake 1 'git lfs pull' "$expertd" --socket "$try" --model "$dir/part"
mistake 1 'raise the memory limit' "$expertd" --socket "$try" --model "$sample" --memory-max 1M
mistake 1 'allow 3538944 bytes or more' "$expertd" --socket "$try" --model "$sample" --pool-max 1M
mistake 2 'auto, 1g, 2m, thp or 4k expected' "$expertd" --socket "$try" --model "$sample" --pages 2g
if [ "$(cat /sys/devices/system/node/node*/hugepages/hugepages-1048576kB/free_hugepages 2>/dev/null | sort -u)" = 0 ]; then
	mistake 1 'nr_hugepages' "$expertd" --socket "$try" --model "$sample" --pages 1g
else
	skip 'this machine has huge pages of 1 GiB, or no such size'
fi
mkfifo "$dir/hold"
perl -MIO::Socket::INET -e '
	my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 1) or die; $| = 1; print $s->sockport, "\n"; <STDIN>
' <"$dir/hold" >"$dir/port" &
holder=$!
started="$started $holder"
exec 8>"$dir/hold"
wait_for test -s "$dir/port"
if "$expertd" --socket "$try" --metrics "$(cat "$dir/port")" 2>&1 | grep -q libmicrohttpd; then
	skip 'a port in use: this daemon was built without libmicrohttpd'
else
	mistake 1 'Name another port' "$expertd" --socket "$try" --metrics "$(cat "$dir/port")"
fi
exec 8>&-

# In a file a key that is not known is passed over, with a word about it.
printf '[Modles]\nModel=%s\n[Daemon]\nSokcet=/x\n' "$dir/no-such" >"$dir/conf"
mistake 0 'is [Models] meant?' "$moectl" config --config "$dir/conf"
mistake 0 'Socket' "$moectl" config --config "$dir/conf"
printf '[Daemon]\nSocketMode=rw\n' >"$dir/conf"
mistake 1 "$dir/conf:2" "$moectl" config --config "$dir/conf"

# A model with a tokenizer of its own, which the sample worker lacks: it says what it does instead.
"$mkmodel" --out "$dir/words" --family qwen3_moe --vocab 5000 >/dev/null 2>&1
mistake 1 'there is no tokenizer' "$worker" generate --daemon "$socket" --model "$dir/words" --prompt x
mistake 1 "type: moectl load $dir/words" "$worker" generate --daemon "$socket" --model "$dir/words" --prompt x
stop_daemon
is $? 0 'the daemon ends'
finish
