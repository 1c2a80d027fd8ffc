#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# versions - the release has one number, wherever it stands: what meson builds, the kernel module, and DKMS.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

my %pattern = (
	'meson.build' => qr/^  version: '([^']*)',/m,
	'kmod/main.c' => qr/^MODULE_VERSION\("([^"]*)"\);/m,
	'kmod/dkms.conf' => qr/^PACKAGE_VERSION="([^"]*)"/m,
);
my %found = map { $_ => (join('', lines($_)) =~ $pattern{$_})[0] } sort keys %pattern;
my $release = $found{'meson.build'} // '';
ok($release =~ /^\d+\.\d+\.\d+$/, "the release is $release");
for my $path (sort keys %found) {
	my $version = $found{$path} // 'none';
	ok($version eq $release, "$path has this number", "$path: $version, meson.build: $release");
}
done();
