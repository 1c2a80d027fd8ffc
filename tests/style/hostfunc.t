#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# hostfunc - no stream calls into the host (docs/decisions/0020): no source names the functions by which one would.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

# Of the driver and of the runtime, with any suffix.
my $calls = qr/\bcu(?:da)?(?:LaunchHostFunc|StreamAddCallback|Graph\w*HostNode\w*)\w*/;

sub named {
	my ($path, @lines) = @_;
	my $n = 0;
	my @found;
	for (@lines) {
		$n++;
		push @found, "$path:$n: $1" while /($calls)/g;
	}
	return @found;
}

my @sources = files(qr/\.(?:[chS]|cc|cu|cuh|map)$/);
my @found = map { named($_, lines($_)) } @sources;
ok(!@found, 'no source names a call from a stream into the host', @found);

my @seen = named('made up', "\tr = cu->cu" . "LaunchHostFunc_v2(s);\n", "cuda" . "StreamAddCallback(s);\n",
	"cu" . "GraphAddHostNode(&n);\n", "cuLaunchKernel(f);\n");
ok(@seen == 3, 'three that do are seen, and a launch is none of them', @seen);
ok(scalar(grep({ m{^lib/device/device-cuda} } @sources)) > 3, 'the back-end for GPUs is among the sources looked at');
done();
