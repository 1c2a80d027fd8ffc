#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tally - a model's histograms and the ghosts of its sessions that have ended are the same after kill -9 of the daemon and
# after it was exchanged, and go on; those of another version are let go, in words, and the model stays.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'needs /proc'

serving() { "$moectl" --socket "$socket" status --json 2>/dev/null | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }

# shellcheck disable=SC2317 # wait_for calls it
another() {
	now=$(serving)
	[ -n "$now" ] && [ "$now" != "$before" ]
}

# ends NAME COMMAND...: which ends the daemon; another one serves.
ends() {
	name=$1
	shift
	before=$(serving)
	"$@"
	wait_for another
	require $? "$name: another daemon serves" "$dir/daemon.log"
}

# what_is_known FILE: all histograms and ghosts of the model, and what is advised by them.
what_is_known() {
	"$moectl" --socket "$socket" stats --json >"$dir/stats.json" 2>"$dir/err" &&
		perl -MJSON::PP -e '
			my $model = decode_json(do { local $/; <STDIN> })->{models}[0];
			my %known = (totals => $model->{totals}{times}, ghosts => $model->{ghosts}, advice => $model->{advice},
				layers => [map { $_->{times} } @{$model->{layers}}]);
			print JSON::PP->new->canonical->pretty->encode(\%known);
		' <"$dir/stats.json" >"$1"
}

# works NAME: a session that comes and goes.
works() {
	"$worker" score --model "$sample" --experts cache --slots 4 --decode --ghosts 2 --daemon "$socket" --text "$dir/text" \
		>"$dir/out" 2>"$dir/err"
	ok $? "$1: a score" "$dir/err"
	wait_for have_sessions 0
	require $? "$1: its session has ended"
}

count() { json "$dir/known" "totals.$1.count"; }

head -c 2000 "$sample/text.txt" >"$dir/text"
start_daemon --keep --model "$sample"
require $? 'a daemon with a keeper' "$dir/daemon.log"
works 'first'
what_is_known "$dir/known"
require $? 'what is known of the model' "$dir/err"
for part in wait queue compute copy; do
	within "$(count $part)" 1 1e12 "$part was measured"
done
within "$(json "$dir/known" ghosts.asked)" 1 1e12 'its ghosts were asked'

# shellcheck disable=SC2046,SC2317 # one number; ends calls them
killed() { kill -9 $(serving); }
# shellcheck disable=SC2317
exchanged() { kill -USR2 "$daemon"; }
# Four deaths in all: a keeper gives up after five in ten seconds.
for way in killed exchanged; do
	ends "$way" "$way"
	what_is_known "$dir/again"
	diff "$dir/known" "$dir/again" >"$dir/diff"
	ok $? "$way: all histograms and ghosts are the same" "$dir/diff"
done

sessions=$(json "$dir/known" ghosts.sessions) waits=$(count wait) asked=$(json "$dir/known" ghosts.asked)
works 'afterwards'
what_is_known "$dir/known"
is "$(json "$dir/known" ghosts.sessions) $(count wait) $(json "$dir/known" ghosts.asked)" "$((sessions + 1)) $((2 * waits)) $((2 * asked))" \
	'the same work once more, and all is twice as much'

# -- another version ----------------------------------------------------------------------------------------------

# The version stands behind eight bytes; the keeper holds the file.
perl -e '
	my ($keeper) = @ARGV;
	for my $fd (glob "/proc/$keeper/fd/*") {
		next unless (readlink($fd) // "") =~ /memfd:moe-tally/;
		open(my $file, "+<", $fd) or die "$fd: $!\n";
		seek($file, 8, 0);
		print $file pack("L", 999);
		close $file or die;
		print "changed\n";
	}
' "$daemon" >"$dir/changed" 2>"$dir/err"
is "$(cat "$dir/changed")" changed 'the keeper has one tally, now of another version' "$dir/err"
ends 'another version' killed
grep -q 'histograms and ghosts begin anew.*version 999 found, 2 expected' "$dir/daemon.log"
ok $? 'the daemon says so' "$dir/daemon.log"
what_is_known "$dir/known"
is "$(count wait) $(json "$dir/known" ghosts)" '0 null' 'and begins anew'
within "$(json "$dir/stats.json" models.0.totals.steps)" 1 1e12 'what the books have counted is still there'
"$moectl" --socket "$socket" status --json >"$dir/status.json"
is "$(json "$dir/status.json" weight_bytes_read)" 0 'no weights were read again'
ends 'one more' killed
works 'one more'
what_is_known "$dir/known"
ends 'and again' killed
what_is_known "$dir/again"
diff "$dir/known" "$dir/again" >"$dir/diff"
ok $? 'the one after it keeps its own' "$dir/diff"
stop_daemon
is $? 0 'it ends'
finish
