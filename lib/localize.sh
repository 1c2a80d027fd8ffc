#!/bin/sh
# SPDX-License-Identifier: MIT
#
# localize - makes a static library that exports only the public functions, so that its inner names cannot collide with
# those of the worker that links it.
#
#   localize.sh OUTPUT.a MAP INPUT.a...
#
# The public names are those of the version script MAP.
set -eu

output=$1 map=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sed -n 's/^\t\(moe_[a-z_]*\);$/\1/p' "$map" >"$dir/public"
ld -r -o "$dir/all.o" --whole-archive "$@"
objcopy --keep-global-symbols="$dir/public" "$dir/all.o"
rm -f "$output"
ar rcs "$output" "$dir/all.o"
