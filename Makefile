# SPDX-License-Identifier: MIT
# Daily work; meson and ninja do it. `make run` and `make check` are ./run and ./check.
BUILD = build
prefix = /usr/local
DESTDIR =

.PHONY: all run check check-amx check-vm check-kmod check-kmod-debug kmod bench breakeven install deb clean format

all: $(BUILD)/build.ninja
	ninja -C $(BUILD)

$(BUILD)/build.ninja:
	scripts/deps.sh
	meson setup $(BUILD)

run:
	./run

check:
	./check

# In an emulator: scripts/amx-lane.sh prepare fetches and builds it, once.
check-amx: $(BUILD)/build.ninja
	ninja -C $(BUILD) tests/test-formats-static tests/test-amx-static
	MOE_BUILD=$(BUILD) TAP_TIMEOUT=1000 PERL5LIB=scripts prove --timer --harness TapCount --exec scripts/tap-run tests/amx/

# The kernel module: KDIR is a folder of a kernel's headers, by default those of the running kernel.
kmod:
	scripts/kmod.sh $(KDIR)

# In machines of its own, which scripts/qemu-lane.sh prepare fetches once.
check-kmod: $(BUILD)/build.ninja
	scripts/qemu-lane.sh prepare tools kernel-6.1-cloud headers-6.1-cloud kernel-6.12-cloud headers-6.12-cloud
	ninja -C $(BUILD) $$(scripts/test-list --targets $(BUILD) kmod)
	MOE_BUILD=$(BUILD) TAP_TIMEOUT=900 PERL5LIB=scripts prove --timer --jobs 2 --harness TapCount --exec scripts/tap-run tests/kmod/

# The same with a kernel that looks for faults, built from source once: 6 to 20 minutes.
check-kmod-debug: $(BUILD)/build.ninja
	scripts/qemu-lane.sh prepare tools headers-6.1-cloud headers-6.12-cloud
	scripts/debug-kernel.sh prepare build-tools source-6.12 newest 6.12-kasan
	ninja -C $(BUILD) tests/test-kmod
	MOE_BUILD=$(BUILD) TAP_TIMEOUT=3600 PERL5LIB=scripts prove --timer --harness TapCount --exec scripts/tap-run tests/kmod-debug/

# In a virtual machine: scripts/vm-lane.sh prepare fetches what it is made of, once.
check-vm:
	TAP_TIMEOUT=1800 PERL5LIB=scripts prove --timer --harness TapCount --exec scripts/tap-run tests/vm/

bench: all
	scripts/bench.sh
	scripts/bench-ffn.sh
	scripts/bench-compare.sh
	scripts/bench-device.sh

# The pictures of docs/BREAKEVEN.md, from their input.
breakeven:
	for i in docs/breakeven docs/breakeven-server; do perl scripts/breakeven.pl $$i.json >$$i.svg.new && mv $$i.svg.new $$i.svg; done

install: all
	meson configure $(BUILD) -Dprefix=$(prefix)
	DESTDIR=$(DESTDIR) meson install -C $(BUILD)
	[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# Into build-deb/, from a copy of the tree; DEB="--version 0.1.0+again" for another version.
deb:
	@scripts/deb.sh $(DEB)

clean:
	rm -rf $(BUILD) build-asan build-tsan build-deb

format:
	find daemon kernels lib tests tools -name '*.[ch]' -exec clang-format -i {} +
