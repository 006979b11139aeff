# Everything that people and CI do, in a few words. `make demo` and `make test` set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NODE_READY := node_modules/.ready
PRETTIER := node_modules/.bin/prettier
SOLIDITY := 'contracts/**/*.sol' 'tests/contracts/*.sol' 'tests/foundry/*.sol'
FORGE := node_modules/@foundry-rs/forge-linux-amd64/bin/forge
SLITHER := build/slither-venv/bin/slither

.DEFAULT_GOAL := help
.PHONY: help setup demo test wide simulate broken nightly docs lint fmt contracts check-contracts foundry analyse gas bench gpu clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(READY) ## a virtual environment with everything

# torch first and alone: pip then finds its requirement met and takes no other build.
$(READY): pyproject.toml
	@echo "setting up $(VENV): torch, this clone and its tools, some 3 GB from package indexes; about three minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "1 of 2: torch 2.13.0 (about a minute)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0
	@echo "2 of 2: this clone and its tools (about two minutes)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

# The compiler and a local node, where npm is there. What needs them skips loudly elsewhere.
$(NODE_READY): package-lock.json
	@if command -v npm >/dev/null; then echo "the Solidity compiler's formatter, anvil and forge by npm (half a minute)"; npm ci --silent && touch $@; else echo "npm is not installed: contract recompilation and the anvil tests are skipped"; fi

demo: $(READY) ## the whole story on the embedded chain
	@$(BIN)/vgame demo

test: $(READY) $(NODE_READY) ## every kind of test that needs no GPU
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not wide and not nightly and not gpu and not browser"

wide: $(READY) $(NODE_READY) ## the longest tests, and more cases of what `make test` runs some of
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "wide and not nightly and not gpu and not browser"

FROM ?= 0
COUNT ?= 1000

simulate: $(READY) $(NODE_READY) ## COUNT games from seed FROM on, with every fault of chain, nodes and strangers; SALES=--sales: deliveries, --several, --endpoints, --logged, --bonuses: docs/simulation.json
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/simulate.py $(FROM) $(COUNT) $(SALES)

broken: $(READY) $(NODE_READY) ## seeds, LIMIT a range at most, until players with one rule broken are found: docs/broken_players.json
	@OMP_NUM_THREADS=1 $(BIN)/python scripts/broken_players.py $(LIMIT)

nightly: $(READY) $(NODE_READY) ## the long tests too
	@$(BIN)/python -m pytest -m "not gpu and not browser" --timeout=7200

PAGES := $(filter-out docs/commands.md, $(wildcard *.md docs/*.md experiments/*.md))

docs: $(READY) ## the site, in build/site; a broken link or prose above 100 columns ends it
	@$(BIN)/python scripts/reflow.py --check $(PAGES)
	@$(BIN)/python scripts/commands.py --check && $(BIN)/python scripts/costs.py --check && $(BIN)/python scripts/contract_page.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

lint: $(READY) $(NODE_READY) ## style, imports that go one way, types of the public face, container files
	@$(BIN)/ruff check vgame tests scripts experiments && $(BIN)/ruff format --check vgame tests scripts experiments
	@test ! -x $(PRETTIER) || $(PRETTIER) --check --log-level warn $(SOLIDITY)
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/mypy
	@$(BIN)/hadolint deploy/Dockerfile
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml deploy/market.yaml

fmt: $(READY) $(NODE_READY) ## format
	@$(BIN)/python scripts/reflow.py $(PAGES)
	@test ! -x $(PRETTIER) || $(PRETTIER) --write --log-level warn $(SOLIDITY)
	@$(BIN)/ruff format vgame tests scripts experiments && $(BIN)/ruff check --fix vgame tests scripts experiments

contracts: $(READY) $(NODE_READY) ## recompile the contracts into vgame/chain/artifacts
	@$(BIN)/python scripts/compile.py

check-contracts: $(READY) $(NODE_READY) ## do the artifacts come from the sources?
	@$(BIN)/python scripts/compile.py --check

foundry: $(NODE_READY) ## random play and all small amounts against the invariants, in Foundry
	@if test -x $(FORGE); then $(FORGE) test; else echo "forge is not installed (Linux on x86-64 only): Foundry's tests are skipped"; fi

$(SLITHER):
	@$(PYTHON) -m venv build/slither-venv && build/slither-venv/bin/pip install -q --disable-pip-version-check slither-analyzer==0.11.6

analyse: $(READY) $(NODE_READY) ## is every finding of forge lint and Slither reviewed? (contracts/findings.toml)
	@$(MAKE) --no-print-directory $(SLITHER) || echo "Slither cannot be installed here: only forge lint runs"
	@$(BIN)/python scripts/analyse.py $$(test ! -x $(SLITHER) || echo --slither $(SLITHER))

gas: $(READY) ## does a dispute cost what docs/gas.json says? (2 % margin)
	@$(BIN)/python scripts/gas.py --check

bench: $(READY) ## what exactness costs: docs/benchmarks.json
	@$(BIN)/python scripts/bench.py

gpu: $(READY) ## all GPU checks and figures in 8 minutes: docs/gpu.json (needs a CUDA build of torch)
	@$(BIN)/python scripts/gpu.py

clean: ## remove what was built
	@rm -rf build .pytest_cache node_modules $(VENV) *.egg-info
