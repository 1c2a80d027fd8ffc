#!/bin/sh
# SPDX-License-Identifier: MIT
#
# doctor - each check has a verdict, and what is not fine says what to type; the exit status is that of the problems.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

# Checks that are there whatever the machine; what is wrong in the document is printed.
judge() {
	perl -MJSON::PP -e '
		my ($file, $code, @wanted) = @ARGV;
		open(my $in, "<", $file) or die; local $/;
		my $report = decode_json(<$in>);
		my (%have, $problems);
		for my $check (@{$report->{checks}}) {
			my $is = "$check->{check}: $check->{verdict}";
			print "$is: no such verdict\n" unless $check->{verdict} =~ /^(?:ok|note|problem)$/;
			print "$is: nothing to type\n" if $check->{verdict} ne "ok" && $check->{fix} eq "";
			print "$is: something to type\n" if $check->{verdict} eq "ok" && $check->{fix} ne "";
			print "$is: says nothing\n" if $check->{found} eq "";
			print "$is: twice\n" if $have{$check->{check}}++;
			$problems += $check->{verdict} eq "problem";
		}
		print "no check of $_\n" for grep { !$have{$_} } @wanted;
		printf "%d problems counted, %d found, exit status %d\n", $report->{problems}, $problems, $code
			if $report->{problems} != $problems || $code != ($problems > 0);
	' "$@" >"$dir/wrong" 2>&1
	[ ! -s "$dir/wrong" ]
}

"$moectl" --socket "$dir/nobody" doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? kernel io_uring 'cpu level' 'cpu quota' 'NUMA balancing' 'transparent huge shmem' 'transparent huge pages' \
	'cgroup memory limit' RLIMIT_MEMLOCK 'GPU driver' daemon
ok $? 'without a daemon' "$dir/wrong"
start_daemon --model "$sample" --name tiny
require $? 'a daemon' "$dir/daemon.log"
"$moectl" --socket "$socket" doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? daemon 'disk of tiny' 'pages of tiny, node 0'
ok $? 'with a daemon its models are looked at' "$dir/wrong"
"$moectl" --socket "$socket" doctor --isa nonsense >"$dir/out" 2>"$dir/err"
is $? 2 'a level that there is not'
prlimit --memlock=65536 "$moectl" --socket "$socket" doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? RLIMIT_MEMLOCK && grep -q 'LimitMEMLOCK=infinity' "$dir/report"
ok $? 'with little memory to lock it says what to type' "$dir/wrong"
"$moectl" --socket "$socket" doctor >"$dir/out" 2>"$dir/err"
grep -qE '^ +-> ' "$dir/out"
ok $? 'for a person it stands below the line' "$dir/out"
stop_daemon
is $? 0 'the daemon ends'
finish
