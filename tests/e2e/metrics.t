#!/bin/sh
# SPDX-License-Identifier: MIT
#
# metrics - what `moectl stats --prometheus` prints is valid, says what the documents say, and is all of the table but for
# what needs a tier, copies of hot experts or a load in progress.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

# prometheus FILE [NAME [LABEL=VALUE...]]: is it valid (what is wrong goes to $dir/wrong); or the sum of these series.
prometheus() {
	perl -Itests/metrics -MPromText -e '
		my ($file, $name, @labels) = @ARGV;
		open(my $in, "<", $file) or die "$file: $!\n";
		my ($all, @wrong) = PromText::parse(do { local $/; <$in> });
		print STDERR "$_\n" for @wrong;
		exit(@wrong ? 1 : 0) unless defined $name;
		my $sum;
		SAMPLE: for my $sample (@{$all->{$name}{samples} // []}) {
			for (@labels) {
				my ($label, $value) = split /=/, $_, 2;
				next SAMPLE if ($sample->{labels}{$label} // "") ne $value;
			}
			$sum += $sample->{value};
		}
		print $sum // "none", "\n";
	' "$@"
}

# valid FILE NAME
valid() {
	prometheus "$1" 2>"$dir/wrong"
	ok $? "$2: the text is valid" "$dir/wrong"
	if command -v promtool >/dev/null 2>&1; then
		promtool check metrics <"$1" >"$dir/wrong" 2>&1
		ok $? "$2: promtool says so too" "$dir/wrong"
	fi
}

start_daemon --model "$sample" --name 'tiny "moe"'
require $? 'the daemon serves the sample' "$dir/daemon.log"
"$moectl" --socket "$socket" stats --prometheus >"$dir/metrics.txt" 2>"$dir/err"
require $? 'moectl stats --prometheus' "$dir/err"
valid "$dir/metrics.txt" 'without sessions'
is "$(prometheus "$dir/metrics.txt" moe_expertd_ready)" 1 'the daemon is ready'
is "$(prometheus "$dir/metrics.txt" moe_expertd_session_info)" none 'no session is no series'

long_text
"$worker" score --model "$sample" --experts cache --slots 4 --decode --ghosts 2 --predict 4 --daemon "$socket" --text "$dir/long.txt" >"$dir/score" 2>"$dir/err" &
scorer=$!
started="$started $scorer"
# shellcheck disable=SC2317 # wait_for calls it
counted() {
	"$moectl" --socket "$socket" stats --prometheus >"$dir/metrics.txt" 2>"$dir/moectl.err" &&
		[ "$(prometheus "$dir/metrics.txt" moe_expertd_session_fills_total)" -gt 0 ] 2>/dev/null &&
		[ "$(prometheus "$dir/metrics.txt" moe_expertd_node_weights_read_bytes_total)" -gt 0 ] &&
		[ "$(prometheus "$dir/metrics.txt" moe_expertd_ghost_bound_hit_rate)" != none ]
}
wait_for counted
require $? 'a session counts' "$dir/moectl.err"
valid "$dir/metrics.txt" 'with a session'
is "$(prometheus "$dir/metrics.txt" moe_expertd_session_info "pid=$scorer")" 1 'it is known by its process'
kill -STOP "$scorer"

# All of the table, but for what is not there now.
sed -n 's/^\t{"\(moe_expertd_[a-z_]*\)".*/\1/p' lib/metrics/families.c | grep -v -e _tier_ -e _loading_ -e _replica_ | sort >"$dir/table"
sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' "$dir/metrics.txt" | sort >"$dir/exported"
diff "$dir/table" "$dir/exported" >"$dir/diff"
ok $? "what the table has is exported" "$dir/diff"
"$moectl" --socket "$socket" stats --json >"$dir/stats.json" 2>"$dir/err" && "$moectl" --socket "$socket" stats >"$dir/stats"
is "$(json "$dir/stats.json" sessions.0.times.wait.count)" "$(json "$dir/stats.json" sessions.0.steps)" 'each step has waited'
for part in wait queue compute copy; do
	sum=0
	for layer in 0 1 2 3 4 5; do
		sum=$((sum + $(json "$dir/stats.json" "models.0.layers.$layer.times.$part.count")))
	done
	is "$sum $(json "$dir/stats.json" "models.0.totals.times.$part.count")" \
		"$(json "$dir/stats.json" "sessions.0.times.$part.count") $sum" "$part: the layers' times add up to the session's and the totals"
	[ "$sum" -gt 0 ]
	ok $? "$part: there are some"
done
is "$(json "$dir/stats.json" sessions.0.times.compute.count)" "$(json "$dir/stats.json" sessions.0.requests.compute)" \
	'each computation is timed'
within "$(json "$dir/stats.json" sessions.0.times.compute.quantiles_ns.1)" 1 1e12 'and the longest has a length'
grep -q '^ *[0-9]*  queue ' "$dir/stats"
ok $? 'moectl stats shows quantiles' "$dir/stats"
is "$(json "$dir/stats.json" sessions.0.ghosts.caches.0.slots)" 4 'ghost caches: the first is as the session has it' "$dir/err"
within "$(json "$dir/stats.json" sessions.0.ghosts.bound_hit_rate)" \
	"$(json "$dir/stats.json" sessions.0.ghosts.bound_own_hit_rate)" 1 'the bound is above what the first found of the same steps'
for key in steps asked asked_pairs caches.0.hit_rate caches.2.hit_rate_pairs; do
	is "$(json "$dir/stats.json" "models.0.ghosts.$key")" "$(json "$dir/stats.json" "sessions.0.ghosts.$key")" "the model's ghosts: $key"
done
within "$(json "$dir/stats.json" models.0.ghosts.bounds.0.hit_rate)" \
	"$(json "$dir/stats.json" models.0.ghosts.bounds.0.own_hit_rate)" 1 'and its bound is above what they found of the same steps'
is "$(json "$dir/stats.json" models.0.advice.0)" "$(json "$dir/stats.json" sessions.0.advice.0)" 'and its advice'
asked=$(json "$dir/stats.json" models.0.ghosts.asked)
grep -q 'ema .* 4 slots .* as it is$' "$dir/stats" && grep -q 'capacity deadlock' "$dir/stats"
ok $? 'moectl stats shows them, and advice' "$dir/stats"
kill -CONT "$scorer"
kill "$scorer"
wait "$scorer" 2>/dev/null
forget "$scorer"

# Nothing moves any more: both say the same.
wait_for have_sessions 0
require $? 'the session is gone'
before=$(json "$dir/stats.json" models.0.totals.times.wait.count)
"$moectl" --socket "$socket" stats --prometheus >"$dir/metrics.txt" 2>"$dir/err" &&
	"$moectl" --socket "$socket" stats --json >"$dir/stats.json" &&
	"$moectl" --socket "$socket" status --json >"$dir/status.json"
require $? 'both are printed' "$dir/err"
within "$(json "$dir/stats.json" models.0.totals.times.wait.count)" "$before" 1e12 'what its steps waited is remembered'
within "$(json "$dir/stats.json" models.0.ghosts.asked)" "$asked" 1e12 'so is what its ghost caches found'
model='model=tiny "moe"'
for path in hit miss_buffer pool cpu local; do
	is "$(prometheus "$dir/metrics.txt" moe_expertd_layer_pairs_total "$model" "path=$path")" \
		"$(json "$dir/stats.json" "models.0.totals.pairs.$path")" "the layers' $path pairs add up to the totals"
done
is "$(prometheus "$dir/metrics.txt" moe_expertd_layer_fill_bytes_total "$model" layer=3)" \
	"$(json "$dir/stats.json" models.0.layers.3.bytes)" "a layer's fills"
is "$(prometheus "$dir/metrics.txt" moe_expertd_pool_pairs_total)" "$(json "$dir/status.json" cpu.pairs)" "the pool's pairs"

# What the nodes gave is what was copied and, of the sample's records, what was computed with.
is "$(prometheus "$dir/metrics.txt" moe_expertd_node_copied_bytes_total)" "$(json "$dir/status.json" cpu.copy_bytes)" \
	'the nodes have copied what the pool has'
is "$(prometheus "$dir/metrics.txt" moe_expertd_node_pool_threads)" "$(json "$dir/status.json" cpu.threads)" \
	'the nodes have the threads of the pool'

# -- over HTTP ----------------------------------------------------------------------------------------------------

# get PORT|PATH REQUEST: the answer's head to $dir/head, its body to $dir/body.
get() {
	perl -MIO::Socket::INET -MIO::Socket::UNIX -e '
		my ($place, $request, $head, $body) = @ARGV;
		my $sock = $place =~ m{^/} ? IO::Socket::UNIX->new(Peer => $place) : IO::Socket::INET->new(PeerAddr => "127.0.0.1:$place");
		die "$place: $!\n" unless $sock;
		print $sock "$request HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
		my $answer = do { local $/; <$sock> };
		my ($first, $rest) = split /\r\n\r\n/, $answer, 2;
		open(my $out, ">", $head) or die; print $out $first =~ s/\r//gr, "\n"; close $out;
		open($out, ">", $body) or die; print $out $rest // ""; close $out;
	' "$1" "$2" "$dir/head" "$dir/body" 2>"$dir/err"
}
status() { sed -n '1s,^HTTP/1.1 \([0-9]*\).*,\1,p' "$dir/head"; }

pid() { "$moectl" --socket "$socket" status --json >"$dir/status.json" 2>/dev/null && json "$dir/status.json" pid; }
# succeeded PROCESS: by another daemon, which is ready
# shellcheck disable=SC2317 # wait_for calls it
succeeded() { now=$(pid) && [ "$now" != "$1" ] && [ "$(json "$dir/status.json" state)" = ready ]; }

if have_proc; then
	is "$(grep -c microhttpd "/proc/$(pid)/maps")" 0 'without --metrics nobody has loaded libmicrohttpd'
else
	skip 'what a daemon has loaded: needs /proc'
fi
stop_daemon
is $? 0 'the daemon ends'
if "$expertd" --socket "$dir/other" --metrics /nowhere/at/all 2>&1 | grep -q 'without libmicrohttpd'; then
	skip 'built without libmicrohttpd: no listener to ask'
else
	# Of the documentation (RFC 5737): no machine has it.
	timeout 60 "$expertd" --socket "$dir/other" --metrics 192.0.2.1:9464 2>"$dir/err"
	is "$?/$(grep -c -e '--metrics 192.0.2.1:9464: cannot listen' "$dir/err")" 1/1 'an address that cannot be had is named' "$dir/err"
	start_daemon --model "$sample" --metrics 0
	require $? 'a daemon with --metrics' "$dir/daemon.log"
	port=$(sed -n 's/.*metrics on port \([0-9]*\)$/\1/p' "$dir/daemon.log")
	get "$port" 'GET /metrics'
	require $? 'it answers on the port that it logs' "$dir/err"
	is "$(status)" 200 'with 200' "$dir/head"
	grep -qi '^content-type: text/plain; version=0.0.4' "$dir/head"
	ok $? 'and the type of the format' "$dir/head"
	valid "$dir/body" 'over HTTP'
	"$moectl" --socket "$socket" stats --prometheus >"$dir/metrics.txt"
	# All but the users: moectl is one itself.
	sed -n '/_user_/!s/^# TYPE //p' "$dir/metrics.txt" >"$dir/expected"
	sed -n '/_user_/!s/^# TYPE //p' "$dir/body" >"$dir/found"
	diff "$dir/found" "$dir/expected" >"$dir/diff"
	ok $? 'with the metrics that moectl prints' "$dir/diff"
	get "$port" 'HEAD /metrics'
	is "$(status) $(wc -c <"$dir/body")" '200 0' 'HEAD has no body' "$dir/head"
	get "$port" 'GET /'
	is "$(status)" 404 'another page is not there' "$dir/head"
	get "$port" 'DELETE /metrics'
	is "$(status)" 405 'another method is refused' "$dir/head"
	get "$port" 'nonsense'
	is "$(status)" 400 'so is what is no HTTP' "$dir/head"

	mkdir "$dir/broken"
	: >"$dir/broken/libmicrohttpd.so.12"
	LD_LIBRARY_PATH=$dir/broken "$expertd" --socket "$dir/other" --metrics 0 2>"$dir/err"
	is $? 1 'a daemon that cannot load libmicrohttpd does not start' "$dir/err"
	grep -q -e '--metrics.*libmicrohttpd.so.12.*install libmicrohttpd12' "$dir/err"
	ok $? 'and says what to install' "$dir/err"

	"$expertd" --socket "$dir/other" --metrics "$port" 2>"$dir/err"
	is $? 1 'a second daemon cannot have the port'
	grep -q -- '--metrics' "$dir/err"
	ok $? 'and says why' "$dir/err"

	# Scrapers that ask all at once, and one that only connects, do not keep anybody from being served.
	perl -MIO::Socket::INET -e '
		my @idle = map { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") } 1 .. 4;
		my @all = map { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") or die } 1 .. 8;
		print $_ "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" for @all;
		local $/;
		exit(scalar grep { readline($_) !~ m{^HTTP/1.1 200} } @all);
	' "$port"
	is $? 0 'eight at once are served'
	"$moectl" --socket "$socket" status >"$dir/out" 2>"$dir/err"
	ok $? 'and moectl' "$dir/err"
	stop_daemon
	is $? 0 'the daemon ends'

	start_daemon --model "$sample" --metrics "$dir/metrics" --socket-mode 0600
	require $? 'on a socket file' "$dir/daemon.log"
	is "$(stat -c %a "$dir/metrics")" 600 'which has the mode of --socket-mode'
	get "$dir/metrics" 'GET /metrics'
	is "$(status)" 200 'it answers there' "$dir/head"
	"$expertd" --socket "$dir/other" --metrics "$dir/metrics" 2>"$dir/err"
	is $? 1 'a second daemon cannot have it' "$dir/err"
	kill -9 "$daemon"
	wait "$daemon" 2>/dev/null
	forget "$daemon"
	start_daemon --model "$sample" --metrics "$dir/metrics"
	require $? 'after kill -9 the next daemon has it' "$dir/daemon.log"
	get "$dir/metrics" 'GET /metrics'
	is "$(status)" 200 'and answers' "$dir/head"
	stop_daemon
	is $? 0 'the daemon ends'

	# A daemon that takes over finds its port taken: it serves its sessions, and says what is missing.
	port=$(perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport')
	printf '[Daemon]\nMetrics=%s\n' "$port" >"$dir/expertd.conf"
	start_daemon --keep --model "$sample" --config "$dir/expertd.conf"
	require $? 'a daemon with a keeper and metrics' "$dir/daemon.log"
	get "$port" 'GET /metrics'
	is "$(status)" 200 'it answers there' "$dir/head"
	first=$(pid)
	mkfifo "$dir/taken" "$dir/until"
	perl -MIO::Socket::INET -e '
		my $taken = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
		open(my $out, ">", $ARGV[0]) or die; print $out $taken->sockport, "\n"; close $out;
		open(my $until, "<", $ARGV[1]); <$until>;
	' "$dir/taken" "$dir/until" &
	started="$started $!"
	read -r other <"$dir/taken"
	printf '[Daemon]\nMetrics=%s\n' "$other" >"$dir/expertd.conf"
	kill -9 "$first"
	wait_for succeeded "$first"
	ok $? 'killed, the next one goes on without metrics, since its port is taken' "$dir/daemon.log"
	grep -q "goes on without metrics: .*$other" "$dir/daemon.log"
	ok $? 'and says so, with the port' "$dir/daemon.log"
	"$worker" score --model "$sample" --experts cpu --daemon "$socket" --text $sample/text.txt --limit 64 --window 64 >"$dir/out" 2>"$dir/err"
	is $? 0 'it computes' "$dir/err"
	get "$port" 'GET /metrics'
	is $? 111 'at its former port nobody answers'
	echo >"$dir/until"
	stop_daemon
	is $? 0 'the daemon ends'

	[ ! -e "$dir/metrics" ]
	ok $? 'and takes the file with it'
fi
start_daemon --model "$sample"
require $? 'the daemon serves the sample again' "$dir/daemon.log"

# -- what goes wrong ----------------------------------------------------------------------------------------------

for other in --json --watch; do
	for form in --prometheus --figures; do
		"$moectl" --socket "$socket" stats $form $other >"$dir/out" 2>"$dir/err"
		is $? 2 "$form with $other is refused" "$dir/err"
	done
done
stop_daemon
is $? 0 'the daemon ends'
"$moectl" --socket "$socket" stats --prometheus >"$dir/out" 2>"$dir/err"
is $? 1 'without a daemon it fails'
[ ! -s "$dir/out" ]
ok $? 'and prints nothing'
finish
