# `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOG := $(VENV)/install.log
# What pip says goes to the log, what it is at to one line of a terminal. Its errors don't pass through here.
PROGRESS = awk -v terminal="$$(test -t 2 && echo 1)" -v out=/dev/stderr '{ print >> "$(LOG)" } !terminal { next } \
  /^ *Collecting / { printf "\r\033[K  package %d: %s", ++found, $$2 > out; fflush(out) } \
  /^Installing collected / { printf "\r\033[K  installing %d packages", found > out; fflush(out) } \
  END { if (terminal) printf "\r\033[K" > out }'

.PHONY: help setup demo demo-quick test test-real test-kubernetes check lint types unit generate bench clean

help: ## List the targets
	@test -t 1 && bold=$$(printf '\033[1m') plain=$$(printf '\033[0m'); \
	awk -F ':.*## ' -v on="$$bold" -v off="$$plain" \
	  '/^[a-z][a-z-]*:.*## /{printf "  %s%-16s%s %s\n", on, $$1, off, $$2}' $(MAKEFILE_LIST)

# Reinstalled only when the list of dependencies changed: seconds otherwise.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "evenflow needs Python 3.11 or newer (found: $$($(PYTHON) --version))" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing evenflow and its dependencies into $(VENV) (a minute or two, once)"
	@set -o pipefail; >$(LOG); { $(BIN)/python -m pip install --disable-pip-version-check --no-warn-script-location \
	  --progress-bar off --editable '.[operator,worker,devcluster,plot,dev]' 2>&1 >&3 | tee -a $(LOG) >&2; } 3>&1 | $(PROGRESS) \
	  || { echo "Installing failed: the reason stands above, all that pip said in $(LOG)" >&2; exit 1; }
	@touch $@

setup: $(STAMP) ## Install everything into .venv (seconds when nothing changed)
	@:

demo: setup ## Replay a production trace on this computer, before and after Evenflow
	@$(BIN)/evenflow demo $(ARGS)

demo-quick: setup ## The same in about a minute
	@$(BIN)/evenflow demo --quick $(ARGS)

test: setup ## Install and run every test; ends with what was exercised and what was not
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/mypy
	@$(BIN)/pytest $(ARGS)

test-real: setup ## The worker inside real vLLM on CPU: installs it once (7 GB), three releases and a server
	@tests/vllm_real/install.sh && tests/vllm_real/run.sh $(ARGS)

test-kubernetes: setup ## A real control plane, built once with Go (15 minutes): contract suite, definition, chart, pools
	@tests/real_kubernetes/run.sh $(ARGS)

check: setup lint types unit ## The fast loop: lint, types, unit tests (under a minute)

lint: setup ## Ruff and the import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports

types: setup ## mypy, strict
	@$(BIN)/mypy

unit: setup ## The pure tests: no processes, no sockets
	@$(BIN)/pytest $(addprefix tests/,contract model worker_scheduling operator_api operator_core) $(ARGS)

generate: setup ## Write the generated files (the CRD, tables in docs); CI fails when they drift
	@$(BIN)/evenflow crd > crds/serving.evenflow.dev_llmservingpools.yaml
	@$(BIN)/python docs/generate.py
	@$(BIN)/python tests/contract_suite/suite_table.py --write

bench: setup ## Run the benchmarks; bench/README.md explains each
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean: ## Remove what setup and the tests made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache evenflow.egg-info
