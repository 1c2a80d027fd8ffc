# SPDX-License-Identifier: MIT
#
# Style - what the style tests share: the repository's files, and TAP.
#
# A file counts as source when a person writes it: not what is built, not models, not licence texts, not what a fuzzer
# found.
package Style;
use strict;
use warnings;
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Find qw(find);

our @EXPORT = qw(files lines ok skip_all done);

my ($count, $failed) = (0, 0);

# The tests run from anywhere and name files relative to the repository's root.
chdir(abs_path(dirname(__FILE__) . '/../..')) or die "cannot go to the repository's root: $!\n";

sub files {
	my ($pattern) = @_;
	my @found;

	find({no_chdir => 1, wanted => sub {
		my $path = s{^\./}{}r;
		if (-d $_ && $path =~ m{^(?:\.git|build(?:-[^/]*)?|LICENSES|models/[^/]+|tests/fuzz/corpus)$}) {
			$File::Find::prune = 1;
			return;
		}
		push @found, $path if -f $_ && !-l $_ && $path =~ $pattern;
	}}, '.');
	return sort @found;
}

sub lines {
	my ($path) = @_;
	open(my $in, '<:raw', $path) or die "$path: $!\n";
	return <$in>;
}

# The prototype: a match that fails is an empty list, which would leave the name in its place.
sub ok($$@) {
	my ($good, $name, @diag) = @_;
	print $good ? '' : 'not ', 'ok ', ++$count, " - $name\n";
	return if $good;
	$failed++;
	print "#   $_\n" for @diag;
}

sub skip_all {
	my ($reason) = @_;
	print "1..0 # SKIP $reason\n";
	exit 0;
}

sub done {
	print "1..$count\n";
	exit($failed ? 1 : 0);
}

1;
