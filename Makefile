# Verbs for people. The build itself is CMake's (CMakePresets.json); each verb is the line that one would type.
#   make help
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=
CTEST_FLAGS ?=
CLANG_FORMAT ?= $(shell command -v clang-format-14 || echo clang-format)
CLANG_TIDY ?= $(shell command -v clang-tidy-14 || echo clang-tidy)

# Test folders whose code starts threads (the target threaded_tests of tests/CMakeLists.txt builds them).
THREADED := base|cache|engine

BIN := build/release/bin/expertflow
DEMO_MODEL := models/demo/demo-Q5_K_M.gguf
DEMO_PROMPT ?= Once upon a time there was a little girl who lived near the forest.
SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

.DEFAULT_GOAL := release
.PHONY: help bootstrap release demo test unit debug debug-threaded tsan sanitizers format format-check lint clean \
        tsan-threaded bar-fixtures bar-demo bar-memory bar-sanitizers bar-cpu-speed bar-cpu-bound bar-larger-than-memory \
        bar-recall bar-predictor-cost bar-verify-isa bar-governor bar-replay bar-stall bar-distance bar-gpu bar-e2e bar-soak bar-scheduling bar-fairness bar-serve-peer bar-prefix bar-dashboard measured peers

help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

release: ## Library and command line tool, optimised (the default)
	@command -v cmake >/dev/null || { echo "cmake is missing: run 'make bootstrap' first" >&2; exit 1; }
	cmake --preset release $(CMAKE_FLAGS)
	cmake --build --preset release -j $(JOBS) --target expertflow_cli

bootstrap: ## Install the missing packages (Debian, Ubuntu)
	@scripts/bootstrap.sh

demo: bootstrap ## Run the bundled model with 40 % of its experts in memory
	@$(MAKE) --no-print-directory release
	$(BIN) run -m $(DEMO_MODEL) --expert-memory 40% -n 96 -p "$(DEMO_PROMPT)"

test: bootstrap ## Build everything, run every test
	@$(MAKE) --no-print-directory unit

unit: ## The same without looking for packages
	cmake --preset release $(CMAKE_FLAGS)
	cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS) $(CTEST_FLAGS)

debug: ## Tests under the address and undefined behaviour sanitizers, slots poisoned
	cmake --preset debug $(CMAKE_FLAGS)
	cmake --build --preset debug -j $(JOBS)
	ctest --preset debug -j $(JOBS) $(CTEST_FLAGS)

debug-threaded: ## The same for the suites that use threads
	cmake --preset debug $(CMAKE_FLAGS)
	cmake --build --preset debug -j $(JOBS) --target threaded_tests
	ctest --preset debug -j $(JOBS) -L '^($(THREADED))$$' $(CTEST_FLAGS)

tsan: ## Tests under the thread sanitizer
	cmake --preset tsan $(CMAKE_FLAGS)
	scripts/fixed-addresses.sh cmake --build --preset tsan -j $(JOBS)
	scripts/fixed-addresses.sh ctest --preset tsan -j $(JOBS) $(CTEST_FLAGS)

tsan-threaded: ## The thread sanitizer on the suites that use threads
	cmake --preset tsan $(CMAKE_FLAGS)
	scripts/fixed-addresses.sh cmake --build --preset tsan -j $(JOBS) --target threaded_tests
	scripts/fixed-addresses.sh ctest --preset tsan -j $(JOBS) -L '^($(THREADED))$$' $(CTEST_FLAGS)

sanitizers: debug tsan ## Both

format: ## Format the sources in place
	@$(CLANG_FORMAT) --version | grep -q ' 14\.' || { echo "clang-format 14 is needed: scripts/bootstrap.sh --dev" >&2; exit 1; }
	$(CLANG_FORMAT) -i $(SOURCES)

format-check: ## Say which sources are not formatted
	@$(CLANG_FORMAT) --version | grep -q ' 14\.' || { echo "clang-format 14 is needed: scripts/bootstrap.sh --dev" >&2; exit 1; }
	@$(CLANG_FORMAT) --dry-run -Werror $(SOURCES) && echo "format: all sources are formatted"

lint: ## clang-tidy: naming rules and likely bugs
	cmake --preset release $(CMAKE_FLAGS)
	@git ls-files 'expertflow/*.cpp' 'apps/*.cpp' | xargs -P $(JOBS) -n 1 $(CLANG_TIDY) -p build/release --quiet

bar-fixtures: ## Every checkpoint of the fixtures: logits, routing, greedy tokens
	@bench/bars/fixtures.sh

bar-demo: ## The bundled model against its golden files
	@bench/bars/demo.sh

bar-memory: ## Peak memory against the budget
	@bench/bars/memory.sh

bar-sanitizers: ## No finding of any sanitizer in the whole suite
	@bench/bars/sanitizers.sh

bar-cpu-speed: ## Speed against llama.cpp's, in turns
	@bench/bars/cpu_speed.sh

bar-cpu-bound: ## Decoding against the speed of the memory
	@bench/bars/cpu_bound.sh

bar-larger-than-memory: ## A model twice as large as its memory limit, against llama.cpp and the disk (root)
	@bench/bars/larger_than_memory.sh

bar-recall: ## Predictors on held-out text, by distance and domain
	@bench/bars/recall.sh

bar-replay: ## Cache policies on recorded traces, beside LRU and the clairvoyant bound
	@bench/bars/replay.sh

bar-stall: ## Waiting for copies at 40 % residency against loading on demand, in replay and on this machine
	@bench/bars/stall.sh

bar-distance: ## The adaptive prediction distance follows the link
	@bench/bars/distance.sh

bar-predictor-cost: ## What a predictor takes of a step, and of memory, on the model widened by 16
	@bench/bars/predictor_cost.sh

bar-verify-isa: ## Equal tokens at every budget with every instruction set
	@bench/bars/verify_isa.sh

bar-e2e: ## The server end to end: OpenAI's npm client and raw events
	@bench/bars/e2e.sh

bar-soak: ## 200 clients of the server for three minutes, some cut off, some malformed
	@bench/bars/soak.sh

bar-scheduling: ## Choice of tokens by experts that are near, against none
	@bench/bars/scheduling.sh

bar-fairness: ## Short prompts behind a long one
	@bench/bars/fairness.sh

bar-serve-peer: ## 8 clients of the server against 8 sequences of llama.cpp
	@bench/bars/serve_peer.sh

bar-prefix: ## A long prompt twice
	@bench/bars/prefix.sh

bar-dashboard: ## The dashboard in headless Chromium
	@bench/bars/dashboard.sh

bar-governor: ## Prefetch never costs more than 2 %, and gains where copies and compute take equally long
	@bench/bars/governor.sh

bar-gpu: ## The CUDA backend on this machine's GPU: tests, sanitizers, speed beside bounds (GPU_FLAGS=--quick)
	@bench/gpu/run $(GPU_FLAGS)

measured: release ## Cache policies and predictors by measured token time (MEASURED_FLAGS="--link 500MB")
	@node bench/replay/measured.mjs $(DEMO_MODEL) --predictor $(DEMO_MODEL:.gguf=.predictor.gguf) $(MEASURED_FLAGS)

peers: release ## The bundled model under llama.cpp and expertflow, in turns
	@bench/peers/run $(DEMO_MODEL)

clean: ## Remove the build folder
	rm -rf build
