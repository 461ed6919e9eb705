# Everything a newcomer types. `make help` lists the targets; each can be repeated at once.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test soak captures bench-window bench-pump bench lint proto docs stop clean

# The installers need no package, only Python 3.11; Debian's python3 is taken where it is one.
PYTHON311 := $(shell for one in python3.11 python3 /usr/bin/python3.11; do \
	"$$one" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && command -v "$$one" && break; done)
PYTHON := .venv/bin/python
KEEP ?=
PYTEST_ARGS ?=
BINLAKE_CAPTURES ?= tests/captures

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Install what is missing below this checkout: uv, locked packages, Delta jars, MariaDB
	@test -n "$(PYTHON311)" || { echo "error: Python 3.11 is needed (Debian: apt-get install python3.11)" >&2; exit 1; }
	@$(PYTHON311) -m deploy.setup --without-tests

setup-tests:  ## The same, and what only the tests need (etcd, HTTP/2 tools)
	@test -n "$(PYTHON311)" || { echo "error: Python 3.11 is needed (Debian: apt-get install python3.11)" >&2; exit 1; }
	@$(PYTHON311) -m deploy.setup

demo: setup  ## A recorded TiDB through pumps, Airflow and Spark into MariaDB, compared; KEEP=1 leaves it running
	@$(PYTHON) -m deploy.local.demo $(if $(KEEP),--keep)

test: setup-tests lint  ## Install, lint, and all tests
	@$(PYTHON) -m pytest $(PYTEST_ARGS)

soak: setup-tests  ## Half an hour of faults on pumps, disks, clocks and writers: nothing may be lost (SEED=, SECONDS_EACH=)
	@BINLAKE_SOAK_SEED="$${SEED:-$$RANDOM}" BINLAKE_SOAK_SECONDS="$${SECONDS_EACH:-600}" \
		$(PYTHON) -m pytest -m soak -s tests/soak $(PYTEST_ARGS)

captures: setup  ## Every capture of BINLAKE_CAPTURES=DIR through pumps and windows, compared at each recorded state
	@$(PYTHON) -m deploy.local.captures "$(BINLAKE_CAPTURES)"

bench-window: setup  ## Rows/s and seconds of each stage on `sysbench_like`, and the floor of the target
	@$(PYTHON) bench/bench_window.py

bench-pump: setup  ## Writes/s, latency, CPU and pulls of a pump beside the floors of disk and RPC
	@$(PYTHON) bench/bench_pump.py

bench: setup  ## Every measurement of bench/
	@set -e; for one in bench/bench_*.py; do echo "== $$one"; $(PYTHON) "$$one"; done

lint: setup  ## Style, types, import rules, generated files up to date, cited ids known
	@$(PYTHON) -m deploy.checks

proto: setup  ## Generate binlake/wire from proto/
	@$(PYTHON) -m deploy.checks proto

docs: setup  ## Write docs/configuration.md
	@$(PYTHON) -m deploy.checks docs

stop:  ## Stop what `make demo KEEP=1` left running
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m deploy.local.stop; else echo "nothing runs"; fi

clean: stop  ## Stop all, and remove what the demo and the tools left (not what `setup` installed)
	@rm -rf .local/demo .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
