# Makefile - the few things people do with allot; CMake does the building. SPDX-License-Identifier: MIT

SHELL := /bin/bash
BUILD := build
JOBS  := $(shell nproc)
CTEST := ctest --output-on-failure -j $(JOBS)

all: build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

deps: ## install the missing Debian packages
	@scripts/install-deps.sh

# $(call configure,FOLDER,OPTIONS)
define configure
dir=$$(scripts/llama-cpp.sh) || exit 1; generator=; test -f $(1)/CMakeCache.txt || generator="-G Ninja"; \
log=$$(cmake -S . -B $(1) $$generator -DALLOT_LLAMA_DIR="$$dir" $(2) 2>&1) || { echo "$$log" >&2; exit 1; }
endef

build: deps ## build/allot, the tests and the tools
	@$(call configure,$(BUILD),)
	@cmake --build $(BUILD) --parallel $(JOBS)

browser: deps
	@scripts/install-deps.sh browser || echo "without a browser the test of report pages is skipped"

test: build browser ## every test
	@cd $(BUILD) && $(CTEST)

test-quick: build ## every test but the conformance tests
	@cd $(BUILD) && $(CTEST) -LE conform

sanitize: deps ## unit and command-line tests under AddressSanitizer and UBSan
	@$(call configure,$(BUILD)-asan,-DALLOT_SANITIZE=ON)
	@cmake --build $(BUILD)-asan --parallel $(JOBS)
	@cd $(BUILD)-asan && $(CTEST) -LE conform

stock-tools: deps ## print the folder of the llama.cpp programs that allot was built beside
	@dir=$$(scripts/llama-cpp.sh) && echo "$$dir/bin"

demo: build ## a real model, end to end: allot against llama.cpp's plain mix at equal size
	@scripts/demo.sh

bench: build ## how near the speed is to its two floors
	@set -e; for program in $(BUILD)/bench-*; do \
	    test ! -x "$$program" || { echo "== $${program##*/}"; "$$program"; }; done
	@echo "== quantize"; bench/quantize.sh $(BUILD)

format: ## run clang-format over the sources
	@git ls-files '*.c' '*.h' | xargs $$(command -v clang-format-14 || echo clang-format) -i

clean: ## remove what was built (the per-user cache stays)
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-fuzz

.PHONY: all help deps build browser test test-quick sanitize stock-tools demo bench format clean
