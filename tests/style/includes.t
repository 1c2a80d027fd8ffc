#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# includes - who may include what: a folder is a layer, and there are no back edges (docs/ARCHITECTURE.md).
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

# A room is the longest of these that a path begins with; to the right, the paths that the room may include.
my %may = (
	'lib/uapi/' => [qw(lib/uapi/)],
	'lib/include/' => [qw(lib/include/)],
	'lib/base/' => [qw(lib/base/ lib/include/moe-error.h)],
	'lib/policy/' => [qw(lib/policy/ lib/base/)],
	'lib/advice/' => [qw(lib/advice/ lib/base/)],
	'lib/ghost/' => [qw(lib/ghost/ lib/policy/ lib/base/ lib/cache.h lib/include/)],
	'lib/placement/' => [qw(lib/placement/ lib/base/ lib/model/file.h lib/include/moe-error.h)],
	'lib/predict/' => [qw(lib/predict/ lib/policy/ lib/base/ lib/include/moe-error.h)],
	'lib/simulate/' => [qw(lib/simulate/ lib/uapi/ lib/policy/ lib/base/ lib/cache.h lib/ncopy.h lib/include/ lib/model/json-memory.h)],
	'lib/manifest/' => [qw(lib/manifest/ lib/base/ lib/uapi/ lib/include/moe-error.h)],
	'lib/metrics/' => [qw(lib/metrics/ lib/base/ lib/include/moe-error.h)],
	'lib/model/' => [qw(lib/model/ lib/base/ lib/uapi/ lib/include/moe-error.h)],
	'lib/settings/' => [qw(lib/settings/ lib/base/ lib/uapi/ lib/include/moe-error.h)],
	'lib/device/' => [qw(lib/device/ lib/base/ lib/uapi/ lib/include/ kernels/kernels.h kernels/record.h kernels/cuda/launch.h)],
	'lib/' => [qw(lib/ !lib/model/ !lib/metrics/ !lib/placement/ !lib/settings/)],
	'kernels/' => [qw(kernels/ lib/uapi/)],
	'kmod/' => [qw(kmod/ lib/uapi/)],
	'daemon/' => [qw(daemon/ lib/base/ lib/uapi/ lib/manifest/ lib/model/ lib/policy/ lib/advice/ lib/metrics/ lib/placement/ lib/settings/ lib/device/device.h lib/include/moe-error.h kernels/kernels.h kernels/record.h)],
	'tools/' => [qw(tools/ lib/ kernels/kernels.h kernels/record.h)],
	# Its kernels are written in the library's words for GPUs.
	'tools/worker/cuda/' => [qw(tools/ lib/ kernels/kernels.h kernels/record.h kernels/cuda/)],
	# The one tool that looks inside: it times the pool without a daemon around it.
	'tools/bench/' => [qw(tools/bench/ tools/patient.h lib/ kernels/kernels.h kernels/record.h kernels/cuda/launch.h daemon/pool.h daemon/store.h)],
	'tests/' => [''],
);
# Where the compiler looks besides the file's own folder, as in meson.build.
my @search = ('', 'lib/', 'lib/include/');

sub room_of {
	my ($path) = @_;
	my ($room) = sort { length $b <=> length $a } grep { index($path, $_) == 0 } keys %may;
	return $room;
}

sub allowed {
	my ($room, $target) = @_;
	my $good = 0;
	for my $rule (@{$may{$room}}) {
		if ($rule =~ /^!(.*)/) {
			$good = 0 if index($target, $1) == 0;
		} elsif (index($target, $rule) == 0) {
			$good = 1;
		}
	}
	return $good;
}

my (@wrong, @homeless, @system);
my $edges = 0;
for my $path (files(qr/\.(?:[chS]|cc|cu|cuh)$/)) {
	my $room = room_of($path);
	if (!defined $room) {
		push @homeless, "$path: in a folder that this test does not know";
		next;
	}
	my $folder = $path =~ s{[^/]*$}{}r;
	my $line = 0;
	for (lines($path)) {
		$line++;
		next unless /^\s*#\s*include\s*(["<])([^">]+)/;
		my ($kind, $name) = ($1, $2);
		my @places = map { "$_$name" } @search;
		unshift @places, "$folder$name" if $kind eq '"';
		my ($target) = grep { -f $_ } @places;
		if ($kind eq '<') {
			push @system, "$path:$line: <$name>" if $room eq 'lib/uapi/' && $name !~ m{^linux/(?:types|ioctl)\.h$};
			push @wrong, "$path:$line: <$name> is ours: write \"$name\"" if defined $target;
			next;
		}
		if (!defined $target) {
			push @wrong, "$path:$line: \"$name\" is not in the repository: write <$name>"
				unless $room eq 'tests/' || -e "$folder$name.in";
			next;
		}
		$edges++;
		push @wrong, "$path:$line: $room may not include $target" unless allowed($room, $target);
	}
}
ok($edges > 20, "there are includes to look at ($edges)");
ok(!@homeless, 'each file lies in a room', @homeless);
ok(!@wrong, 'each include goes downwards', @wrong);
ok(!@system, 'lib/uapi includes <linux/types.h> and <linux/ioctl.h>, and nothing else of the system', @system);
done();
