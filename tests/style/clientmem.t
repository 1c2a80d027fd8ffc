#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# clientmem - reading client memory outside the ring server does not compile under clang (daemon/clientmem.h): tried
# with functions that do, and with every file of the daemon. The way around it, a cast, is taken nowhere else.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;
use File::Temp;

# What only the ring server may do: to make an ordinary pointer; and what is no reading: to unmap.
my @ring_server = qw(daemon/ringsrv-internal.h);
my %unmaps = ('daemon/session.c' => qr/^\s*(?:munmap|closer_unmap)\(\(void \*\)\(uintptr_t\)s->(?:client|arenas\[i\])\.base,/);

my @casts;
for my $path (grep { !{map { $_ => 1 } @ring_server}->{$_} } files(qr{^daemon/.*\.[ch]$})) {
	my $n = 0;
	for (lines($path)) {
		$n++;
		next unless /\([^()]*\*?\)\s*(?:\(uintptr_t\)\s*)?[\w>.\[\]-]*(?:client|arenas\[[^\]]*\]|memory)(?:\.|->)base\b/;
		push @casts, "$path:$n: $_" unless $unmaps{$path} && $_ =~ $unmaps{$path};
	}
}
ok(!@casts, 'client memory becomes an ordinary pointer in the ring server alone', @casts);

# Options of clang that parse the daemon's files, with no warning but this one.
my $parse = q{clang -D_GNU_SOURCE -DMOE_VERSION='""' -std=gnu17 -I. -Ilib -Ilib/include -fsyntax-only -Wno-everything }
	. '-Werror=noderef';

# Tries to compile a function in a file of the daemon's that the ring server is not. Its words, '' when it compiles.
sub compile {
	my ($body) = @_;
	my $file = File::Temp->new;
	open my $clang, '|-', 'clang -D_GNU_SOURCE -std=gnu17 -I. -Ilib -Ilib/include -Werror -fsyntax-only -x c - '
		. "2>'$file'" or return 'clang cannot be started';
	print $clang qq{#include "daemon/session.h"\n$body\n};
	close $clang;
	my $failed = $?;
	my $words = join '', <$file>;
	return $failed ? $words || 'failed without a word' : '';
}

if (system('clang --version >/dev/null 2>&1') == 0) {
	my %reads = (
		'the client page' => 'int f(struct session *s); int f(struct session *s) { return s->client.base[0]; }',
		'an arena' => 'int f(struct session *s); int f(struct session *s) { return *s->arenas[1].base; }',
		'a copy of the pointer' => 'int f(struct clientmem *m); int f(struct clientmem *m) '
			. '{ CLIENT_MEMORY uint8_t *p = m->base; return p[4]; }',
	);
	my $words = compile('int f(struct session *s); int f(struct session *s) { return s->client.bytes > 0; }');
	ok($words eq '', 'what reads no client memory compiles', $words);
	for my $what (sort keys %reads) {
		$words = compile($reads{$what});
		ok(scalar($words =~ m{noderef}), "reading $what does not", $words);
	}
	my @wrong = grep { $_ ne '' } map { `$parse $_ 2>&1` } files(qr{^daemon/.*\.c$});
	ok(!@wrong, 'no file of the daemon reads it', map { split /\n/ } @wrong);
} else {
	ok(1, '# SKIP clang is not installed');
}
done();
