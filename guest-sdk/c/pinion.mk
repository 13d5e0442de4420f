# The Makefile of a function in C includes this file, after it has set
#
#   NAME     the function's name: the module is build/NAME.wasm
#   SOURCES  its C files
#   TESTS    C files of native tests, each with a main; none by default
#   NET      1 for a function with sockets (pinion/net.h), whose library in Rust is built as well; such a function has no TESTS
#
# and gets these targets:
#
#   make          builds the module
#   make test     runs the tests natively, on a fake node and with sanitizers
#   make clean
#
# BUILD is the folder of all results, MODULE another name for the module. CFLAGS are options for both compilers, CLANG and CC. The library for
# sockets is built by CARGO, or is the file that NET_LIBRARY names.

PINION_C := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
BUILD ?= build
MODULE ?= $(BUILD)/$(NAME).wasm
CFLAGS ?= -O2
# Debian's newest, or else the machine's default.
CLANG ?= $(or $(shell command -v clang-19),$(shell command -v clang),clang)

pinion_headers := $(wildcard $(PINION_C)/include/*.h $(PINION_C)/include/pinion/*.h $(PINION_C)/src/*.h $(PINION_C)/src/net/*.h $(PINION_C)/test/*.h)
pinion_sources := $(wildcard $(PINION_C)/src/*.c)
pinion_stack_bytes := 65536
pinion_fake_node := $(wildcard $(PINION_C)/test/*.c)
pinion_warnings := -std=c11 -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes
# The stack lies first, so that an overflow traps and does not overwrite other memory.
pinion_module_flags = --target=wasm32-wasi -mexec-model=reactor -fno-exceptions -flto -fuse-ld=lld \
	-Wl,--stack-first -Wl,-z,stack-size=$(pinion_stack_bytes) -Wl,--strip-debug -Wl,--gc-sections $(pinion_more_flags)
pinion_test_flags := -g -D_GNU_SOURCE -pthread -fsanitize=address,undefined -fno-sanitize-recover=all

ifeq ($(strip $(NET)),1)
ifneq ($(TESTS),)
$(error a function with sockets (NET := 1) has no native TESTS: its clients test it, on `pinion dev` for example)
endif
# Pool, rings and exports are those of the library in Rust, which has as much stack as a function in Rust.
pinion_sources := $(filter-out %/entry.c %/loop.c %/pool.c,$(pinion_sources)) $(wildcard $(PINION_C)/src/net/*.c)
pinion_stack_bytes := 1048576
pinion_warnings += -DPINION_WITH_NET
# A twentieth of a module.
pinion_more_flags := -Wl,--compress-relocations
CARGO ?= $(or $(PINION_CARGO),cargo)
pinion_cargo_library := $(BUILD)/cargo/wasm32-wasip1/guest/libpinion_net.a
pinion_library := $(or $(NET_LIBRARY),$(pinion_cargo_library))

# cargo itself knows whether there is something to do.
.PHONY: pinion_cargo
$(pinion_cargo_library): pinion_cargo
	$(CARGO) build --quiet --locked --manifest-path $(PINION_C)/net/Cargo.toml --profile guest --target wasm32-wasip1 --target-dir $(BUILD)/cargo
endif

.DEFAULT_GOAL := module
.PHONY: module test clean

module: $(MODULE)

$(MODULE): $(SOURCES) $(pinion_sources) $(pinion_headers) $(pinion_library) $(PINION_C)/pinion.mk $(wildcard $(addsuffix *.h,$(sort $(dir $(SOURCES)))))
	@mkdir -p $(@D)
	$(CLANG) $(pinion_warnings) $(CFLAGS) $(pinion_module_flags) -I$(PINION_C)/include $(SOURCES) $(pinion_sources) $(pinion_library) -o $@

test: $(addprefix $(BUILD)/test/,$(notdir $(basename $(TESTS))))
	@for test in $^; do $$test || exit 1; done

define pinion_test
$(BUILD)/test/$(notdir $(basename $(1))): $(1) $(SOURCES) $(pinion_sources) $(pinion_headers) $(pinion_fake_node)
	@mkdir -p $$(@D)
	$$(CC) $$(pinion_warnings) $$(CFLAGS) $$(pinion_test_flags) -I$$(PINION_C)/include -I$$(PINION_C)/test \
		$(1) $$(SOURCES) $$(pinion_sources) $$(pinion_fake_node) -o $$@
endef
$(foreach test,$(TESTS),$(eval $(call pinion_test,$(test))))

clean:
	rm -rf $(BUILD)
