#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tutorial - docs/TUTORIAL.md does what it says: its sh blocks are run one after the other in one shell, and the text
# block behind some of them is what they print.
#
# What is put in the place of what a reader has: the build folder for build, a folder of the test's for /tmp/moe, the
# source for /src. Words are compared after numbers have become N and bars and blanks one blank; `...` is any lines. The
# score and the sum of the pairs are the same everywhere, and compared as they stand, a score to three places.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'needs /proc'
place=$dir/moe
page=docs/TUTORIAL.md

# N.sh and N.txt of the Nth block; the text block behind it, if there is one before the next.
perl -e '
	my ($page, $out, $build, $place, $source) = @ARGV;
	open(my $in, "<", $page) or die "$page: $!\n";
	my ($n, $to) = (0);
	while (<$in>) {
		if (/^```sh$/) {
			open($to, ">", sprintf("%s/%02d.sh", $out, ++$n)) or die;
		} elsif (/^```text$/) {
			open($to, ">", sprintf("%s/%02d.txt", $out, $n)) or die;
		} elsif (/^```$/) {
			undef $to;
		} elsif (/^```/) {
			die "$page:$.: blocks are sh or text\n";
		} elsif ($to) {
			s{/tmp/moe\b}{$place}g;
			s{/src\b}{$source}g;
			s{\$PWD/build|\bbuild(?=/(?:daemon|tools))}{$build}g;
			print $to $_;
		}
	}
' "$page" "$dir" "$(realpath "$build")" "$place" "$(pwd -P)" >"$dir/log" 2>&1
require $? 'the blocks of the tutorial' "$dir/log"

# All in one shell, which stops at the first command that fails; what block N prints goes to N.out.
{
	echo 'set -e'
	for block in "$dir"/??.sh; do
		echo "exec >'${block%.sh}.out' 2>'${block%.sh}.err'"
		echo "echo '$(basename "$block" .sh)' >'$dir/reached'"
		cat "$block"
	done
	echo "echo all >'$dir/reached'"
} >"$dir/all.sh"
echo none >"$dir/reached"
sh "$dir/all.sh" &
shell=$!
# Its daemon must not outlive a test that is ended.
started="$started $shell"
wait "$shell"
code=$?
forget "$shell"
last=$(cat "$dir/reached")
is "$last:$code" all:0 'all blocks were run' "$dir/$last.err"
[ "$last" = all ] || for process in $(ps -o pid=,args= | awk -v p="$place" 'index($0, p) && /expertd/ { print $1 }'); do
	kill "$process"
done

# Each line that is printed on the page was printed, in order, with nothing between them but where `...` stands.
said() {
	perl -e '
		my ($expected, $found) = @ARGV;
		sub normal {
			open(my $in, "<", $_[0]) or die "$_[0]: $!\n";
			my @lines = <$in>;
			for (@lines) {
				if (/ nats per token|: adds up$|^all /) {
					s/(\.\d{3})\d+/$1/g;
					s/\s+/ /g;
					s/ $//;
					next;
				}
				s/\((?:ref|avx2|avx512|amx)\)/(ISA)/g;
				s/\b[0-9a-f]{32}\b/N/g;
				s/[#|\x{2500}-\x{259f}]+/ /g unless /^\S+:/;
				s/(?<![A-Za-z_])\d[\d.]*/N/g;
				s/N[kMGT](?= |$)/N/g;
				s/\bN (?:[num]?s|min|h)\b/N s/g;
				s/\bN [kMGT]?B\b/N B/g;
				s/\s+/ /g;
				s/ -(?= |$)/ N/g;
				s/N%/N/g;
				s/^ | $//g;
			}
			return @lines;
		}
		my @expected = normal($expected);
		my @found = normal($found);
		my $any = 0;
		for my $line (@expected) {
			if ($line eq "...") {
				$any = 1;
				next;
			}
			shift @found while $any && @found && $found[0] ne $line;
			my $next = shift @found // "(nothing more)";
			if ($next ne $line) {
				print "expected: $line\nfound: $next\n";
				exit 1;
			}
			$any = 0;
		}
		exit 0 if $any || !@found;
		print "more than expected: $found[0]\n";
		exit 1;
	' "$1" "$2"
}

for text in "$dir"/??.txt; do
	block=$(basename "$text" .txt)
	said "$text" "$dir/$block.out" >"$dir/differs" 2>&1
	ok $? "block $block prints what the page says: $(head -n 1 "$dir/$block.sh" | cut -c 1-60 | sed "s,$dir,,g")" "$dir/differs" ||
		sed 's/^/#   /' "$dir/$block.out"
done
[ ! -e "$place" ]
ok $? 'nothing is left'
finish
