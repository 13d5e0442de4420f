# make            builds everything there is to run
# make run        a tour: a node, three clients, and the FWP that each gets; HOST=1 puts it on the host's own network
# make test       everything that is to hold, as it is run before a change is taken
# make bench      every figure, measured beside its peers, with tuning on and off; NAME=chain for one, ARGS='--lengths 1' for its options
# make help       the rest

SHELL := /bin/bash
# Where rustup puts Rust, for shells that have not heard of it.
export PATH := $(HOME)/.cargo/bin:$(PATH)

# INSTALL=no leaves the machine as it is.
INSTALL ?= yes
# TEST=NAME has test-unit and test-integration run only the tests whose names contain it.
TEST ?=
# TIME=SECONDS is how long `make fuzz` runs each target, `make soak` each of its loads, and `make wakeups` all of its plans. TARGET=NAME has fuzz run that target
# only, with INPUT=FILE on that input only.
TIME ?= 60
TARGET ?=
INPUT ?=
# NAME=FIGURE has bench measure only this one, with the options in ARGS.
NAME ?=
ARGS ?=
# SEED=NUMBER has wakeups choose as it did when it printed that.
SEED ?=

# With the features that all packages together ask for, as the tests have them, so that hardly anything is compiled twice.
BINARIES := --workspace --bin piniond --bin pinion --bin pinion-builder
GUESTS := tests/setup/build-guests.sh
FIGURES := launch churn density quantum fair invoke chain middlebox ping memcached http tls infer idle

.DEFAULT_GOAL := build
.PHONY: build run test check test-unit test-integration hostile loom fuzz soak wakeups bench counts report install install-run install-test \
	install-bench install-book guests check-engine fmt doc book clean help

build: install
	cargo build --release $(BINARIES)
	$(GUESTS)

run: install-run
	$(MAKE) --no-print-directory build INSTALL=no
	@exec samples/tour/run.sh

# One after the other, the quick ones first. The programs are built with the tests.
test: install-test
	$(MAKE) --no-print-directory check
	$(GUESTS) --with-hostile
	tests/run.sh
	$(MAKE) --no-print-directory loom

check:
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	cargo clippy --release --package pinion-gateway --package pinion-runtime --no-default-features --all-targets -- -D warnings
	$(MAKE) --no-print-directory doc

# Asks the registry, and is therefore no part of test: a release of the engine must not turn it red.
check-engine:
	@tests/setup/check-engine.sh

test-unit: install-test
	cargo test --release --workspace --exclude pinion-tests -- $(TEST)

test-integration: install-test
	cargo build --release $(BINARIES)
	$(GUESTS) --with-hostile
	$(if $(TUNING),PINION_TEST_TUNING=$(TUNING)) cargo test --release --package pinion-tests --no-fail-fast -- $(TEST)

# What one tenant does to the others, attack by attack.
hostile: install-test
	cargo build --release $(BINARIES)
	$(GUESTS) --with-hostile
	@tests/hostile/run.sh

# The lock-free parts, in every order that threads could run in.
loom:
	RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom --package pinion-mma --lib loom

# Foreign bytes, made up by a fuzzer: frames, what guests write and call, models.
fuzz: install-test
	tests/fuzz/run.sh $(if $(INPUT),--input $(INPUT),$(TIME)) $(TARGET)

# Builds on standard error, so that standard output has nothing but figures.
bench: install-bench
	@cargo build --release --quiet $(BINARIES) >&2
	@$(GUESTS) --with-hostile >&2
	@cargo build --release --quiet --workspace --bin pinion-bench >&2
	@tests/bench/run.sh "$(or $(NAME),$(FIGURES))" $(if $(NAME),,--tuning both) $(ARGS)

counts: install-test
	@cargo build --release --quiet --workspace --bin pinion-counts >&2
	@$(GUESTS) >&2
	@target/release/pinion-counts $(if $(filter yes,$(ACCEPT)),--accept) $(ARGS)

# Of what bench has measured: a page with plots, and the table in the README.
report:
	@cargo run --release --quiet --package pinion-bench -- report --from target/bench \
		--html target/report/index.html --table docs/performance.md

# Nodes under load and churn, looked at for what leaks.
soak: install-test
	cargo build --release $(BINARIES)
	$(GUESTS) --with-hostile
	PINION_SOAK_SECONDS=$(TIME) cargo test --release --package pinion-tests --test soak -- --ignored --nocapture
	PINION_SOAK_SECONDS=$(TIME) cargo test --release --package pinion-bench soak -- --ignored --nocapture --test-threads 1

# Nodes that fall asleep between any two things that are asked of them.
wakeups: install-test
	cargo build --release $(BINARIES)
	$(GUESTS)
	$(if $(SEED),PINION_WAKEUPS_SEED=$(SEED)) PINION_WAKEUPS_SECONDS=$(TIME) \
		cargo test --release --package pinion-tests --test wakeups -- --ignored --nocapture

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

# Guide for tenants and operators. Its reference of the control API is made from the proto files.
book: install-book
	python3 docs/api.py $(addprefix control/proto/pinion/v1/,control.proto objects.proto reports.proto) >docs/src/api.md
	mdbook build docs

install:
ifneq ($(INSTALL),no)
	@tests/setup/install.sh
endif

install-run install-test install-bench install-book: install-%:
ifneq ($(INSTALL),no)
	@tests/setup/install.sh $*
endif

guests: install
	$(GUESTS) --with-hostile

fmt:
	cargo fmt --all

clean:
	cargo clean

help:
	@echo "make build              piniond, pinion, pinion-builder, and the sample functions"
	@echo "make run [HOST=1]       a tour: a node, three clients, and the FWP that each gets"
	@echo "make test               formatting, lints, all tests, models of the lock-free parts, documentation"
	@echo "make check              formatting, lints and documentation only"
	@echo "make check-engine       whether Cargo.lock has the newest patch of wasmtime's line; asks the registry, so make test does not"
	@echo "make test-unit          tests beside the code; TEST=NAME for some of them"
	@echo "make test-integration   tests with real nodes and clients, as root; TEST=NAME for some of them, TUNING=off without prefetches"
	@echo "make loom               models of the lock-free parts only"
	@echo "make fuzz TIME=3600     fuzz targets, each for so many seconds; TARGET=NAME for one, INPUT=FILE for one input"
	@echo "make hostile            what one tenant does to the others, attack by attack"
	@echo "make soak TIME=3600     nodes under load and churn for so many seconds each, as root, looked at for what leaks"
	@echo "make wakeups TIME=300   nodes that sleep between any two packets, calls and deadlines, as root; SEED=NUMBER for the same choices"
	@echo "make bench              every figure beside its peers, as root; NAME=chain for one, ARGS='--lengths 1' for its options"
	@echo "make counts             what steps of a packet's way cost in instructions and cache lines, against tests/counts/figures.toml"
	@echo "make report             target/report/index.html and the table of docs/performance.md, from what bench has measured"
	@echo "make guests             the sample functions, and those that tests misbehave with"
	@echo "make doc                the documentation of all crates, in target/doc"
	@echo "make book               the guide for tenants and operators, in target/book"
	@echo "make install            what building and running takes, from Debian, rustup and go.dev; INSTALL=no prevents it"
	@echo "make fmt, make clean    formats the code; removes what was built"
