#!/bin/sh
# SPDX-License-Identifier: MIT
#
# generate - the sample model writes what the reference writes, and the daemon's table adds up.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

words='specifies the content of the service' # of REFERENCE.json, before the first near tie
prompt=$(printf 'NAME\n       expertd - ')
tokens=64

layers=$(json $sample/config.json num_hidden_layers)
topk=$(json $sample/config.json num_experts_per_tok)

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"

for options in '--experts local' '--experts cpu' '--experts cache --predict 4' '--experts cache --slots 4 --mode decode --tp 2'; do
	case $options in
	*local*) where= ;;
	*) where="--daemon $socket" ;;
	esac
	# Word splitting is meant.
	# shellcheck disable=SC2086
	"$worker" generate --model "$sample" $options $where --prompt "$prompt" --tokens $tokens \
		>"$dir/text" 2>"$dir/err"
	ok $? "generate $options" "$dir/err"
	grep -q "$words" "$dir/text"
	ok $? "generate $options: begins as the reference does" "$dir/text"
done

"$worker" generate --model "$sample" --daemon "$socket" --prompt "$prompt" --tokens 1 >&- 2>"$dir/err"
is $? 1 'without a standard output it fails'
grep -q 'standard output' "$dir/err"
ok $? 'and writes into nothing else' "$dir/err"

"$moectl" --socket "$socket" stats --json >"$dir/stats.json" 2>"$dir/err"
require $? 'moectl stats --json' "$dir/err"
is "$(json "$dir/stats.json" 'models.0.layers.#')" "$layers" 'the table has each layer'

sum_of() { # PREFIX
	sum=0
	for path in hit miss_buffer cpu local; do
		sum=$((sum + $(json "$dir/stats.json" "$1.pairs.$path")))
	done
	echo "$sum"
}
total=0
row=0
while [ "$row" -lt "$layers" ]; do
	seen=$(json "$dir/stats.json" "models.0.layers.$row.tokens")
	# Three runs came to the daemon; each fed the prompt and all that it wrote but the last token.
	is "$seen" $((3 * (${#prompt} + tokens - 1))) "layer $row has seen all tokens"
	sum=$(sum_of "models.0.layers.$row")
	is "$sum" $((seen * topk)) "layer $row: the paths add up to tokens x top-k"
	total=$((total + sum))
	row=$((row + 1))
done
is "$(sum_of models.0.totals)" "$total" 'the totals are the layers added up'

recall=$(json "$dir/stats.json" models.0.totals.predict.recall)
found=$(json "$dir/stats.json" models.0.totals.predict.found)
within "$recall" 0.3 1 "of what steps asked for $recall had been guessed ($found experts)"

for guess in 0 6; do
	"$worker" generate --model "$sample" --experts cache --slots 4 --mode decode --seed 7 --temperature 1 --predict $guess \
		--daemon "$socket" --prompt "$prompt" --tokens $tokens >"$dir/text.$guess" 2>"$dir/err"
	ok $? "generate --predict $guess" "$dir/err"
done
cmp "$dir/text.0" "$dir/text.6" >"$dir/err" 2>&1
ok $? 'guesses change no word' "$dir/err"

# Bytes are token ids of the sample, and who draws from the likeliest alone draws nothing.
printf '%s' "$prompt" | od -An -v -tu1 >"$dir/ids"
for options in "--ids $dir/ids" "--prompt @ --temperature 1 --top-p 0.000001" '--prompt @ --warm' '--prompt @ --cache-topk 1'; do
	set --
	for word in $options; do
		[ "$word" != @ ] || word=$prompt
		set -- "$@" "$word"
	done
	"$worker" generate --model "$sample" --experts cache --slots 4 --daemon "$socket" --tokens $tokens "$@" >"$dir/text" 2>"$dir/err"
	ok $? "generate $options" "$dir/err"
	grep -q "$words" "$dir/text"
	ok $? "generate $options: begins as the reference does" "$dir/text"
done

"$worker" generate --model "$sample" --experts cache --stats --daemon "$socket" --prompt "$prompt" --tokens 8 \
	>"$dir/text" 2>"$dir/err"
ok $? 'generate --stats' "$dir/err"
grep -q 'pairs: adds up' "$dir/text"
ok $? 'generate --stats: the paths add up' "$dir/text"

"$moectl" --socket "$socket" stats >"$dir/table" 2>"$dir/err"
ok $? 'moectl stats' "$dir/err"
grep -q 'tokens x layers x k is [0-9]*: equal' "$dir/table"
ok $? 'moectl stats: the paths add up' "$dir/table"

stop_daemon
is $? 0 'the daemon ends with 0'
finish
