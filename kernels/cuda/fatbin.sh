#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fatbin - compiles the CUDA kernels for sm_80, sm_90 and sm_100, and PTX of the last for what comes later; writes an
# assembler file that holds them, and what ptxas says of registers and spills.
#
#   fatbin.sh NVCC SOURCE-ROOT ALL.CU OUT.fatbin OUT.S OUT.txt [SYMBOL]
#
# In the object that comes of it they begin at SYMBOL (cuda_fatbin), and SYMBOL_bytes says how many there are.
#
# With a folder in $MOE_FATBIN_CACHE what was compiled from the same text before is taken from there.
#
# No contraction of products and sums (-fmad=false): the text says where there is an fma, and the host's twins do the same.
set -eu

nvcc=$1 root=$2 source=$3 fatbin=$4 assembler=$5 words=$6 symbol=${7-cuda_fatbin}
real=$(realpath "$(dirname "$fatbin")")/$(basename "$fatbin")

compile() {
	"$nvcc" -fatbin -O3 -std=c++17 -fmad=false -Werror all-warnings -Xptxas -v --threads 2 \
		-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
		-gencode arch=compute_100,code=sm_100 -gencode arch=compute_100,code=compute_100 \
		-I"$root" -I"$root/lib" -I"$root/lib/include" -o "$fatbin" "$source" >"$words" 2>&1 || {
		cat "$words" >&2
		exit 1
	}
}

if [ -n "${MOE_FATBIN_CACHE-}" ]; then
	here=$(dirname "$source")
	text=$({ "$nvcc" --version && cat "$0" "$here"/* "$root"/kernels/cuda/* "$root"/lib/uapi/*; } | sha256sum | cut -c 1-32)
	kept=$MOE_FATBIN_CACHE/$text
	if [ -e "$kept/done" ]; then
		cp "$kept/fatbin" "$fatbin"
		cp "$kept/words" "$words"
	else
		compile
		mkdir -p "$kept"
		cp "$fatbin" "$kept/fatbin"
		cp "$words" "$kept/words"
		: >"$kept/done"
	fi
else
	compile
fi

cat >"$assembler" <<END
	.section .rodata
	.balign 64
	.globl $symbol
	.type $symbol, @object
$symbol:
	.incbin "$real"
.Lend:
	.size $symbol, .Lend - $symbol
	.balign 8
	.globl ${symbol}_bytes
	.type ${symbol}_bytes, @object
${symbol}_bytes:
	.quad .Lend - $symbol
	.size ${symbol}_bytes, 8
	.section .note.GNU-stack, "", @progbits
END
