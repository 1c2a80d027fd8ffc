# SPDX-License-Identifier: MIT
# Daily work; meson and ninja do it. `make run` and `make check` are ./run and ./check.
BUILD = build
prefix = /usr/local
DESTDIR =

.PHONY: all run check check-amx bench breakeven install clean format

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

clean:
	rm -rf $(BUILD) build-asan build-tsan

format:
	find daemon kernels lib tests tools -name '*.[ch]' -exec clang-format -i {} +
