# Everything a newcomer types. `make help` lists the targets; each can be repeated at once.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo demo-mysql test all-tests test-quick mutate soak simulate captures pictures bench-window bench-pump bench-decode bench-audit bench-page bench-control bench-apply bench-lag bench-feed bench-files bench-feeder bench-snapshot bench-proofs bench flame bench-steps bench-record bench-all lint proto docs docs-site stop clean

# The installers need no package, only Python 3.11. The system's own comes first: a distribution compiles it with profile-guided
# optimisation, pyenv by default does not, and then everything takes a fifth more CPU. `PYTHON311=python3.11` chooses another.
PYTHON311 := $(shell for one in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do \
	"$$one" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && command -v "$$one" && break; done)
PYTHON := .venv/bin/python
KEEP ?=
PYTEST_ARGS ?=
# On two cores: each further process loads all tests and has servers of its own, ten seconds of CPU or more.
# A file's tests stay together, and so do files that share what is dear (tests/support/sharing.py); the dearest come first.
BESIDE := -n 4 --dist loadfile --no-loadscope-reorder
QUICKLY := -n 4 --dist loadfile --no-loadscope-reorder
BINLAKE_CAPTURES ?= tests/captures

# Where Python is to write no bytecode beside its sources, it is kept apart, from the first import on: each process of the
# tests compiles a second's worth of modules before tests/support/bytecode.py sees to it.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.local/pycache
endif

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Install what is missing below this checkout: uv, locked packages, Delta jars, MariaDB
	@test -n "$(PYTHON311)" || { echo "error: Python 3.11 is needed (Debian: apt-get install python3.11)" >&2; exit 1; }
	@$(PYTHON311) -m deploy.setup --without-tests

setup-tests:  ## The same, and what only the tests need (etcd, PostgreSQL, HTTP/2 tools, a browser, Docker Compose)
	@test -n "$(PYTHON311)" || { echo "error: Python 3.11 is needed (Debian: apt-get install python3.11)" >&2; exit 1; }
	@$(PYTHON311) -m deploy.setup

demo: setup  ## A recorded TiDB through pumps, Airflow and Spark into MariaDB, compared; KEEP=1 leaves it running, FEED=1 adds Kafka
	@$(PYTHON) -m deploy.local.demo $(if $(KEEP),--keep) $(if $(FEED),--feed)

demo-mysql: setup  ## Two sharded MariaDB servers under writes, a full load and their logs, into one MariaDB, compared; KEEP=1
	@$(PYTHON) -m deploy.local.demo_mysql $(if $(KEEP),--keep)

# The type checker keeps one of two cores busy for a minute: what only the tests need is fetched and unpacked beside it,
# and the tests begin without waiting for it.
test: setup  ## Install, lint, and test every part; what takes longer is `make soak`
	@$(MAKE) --no-print-directory --jobs=2 lint all-tests

all-tests: setup-tests
	@$(PYTHON) -m pytest $(BESIDE) --draw-one-of 4 $(PYTEST_ARGS)

test-quick: setup  ## The tests that need no server and are cheap, by their marks (tests/support/selection.py): one or two minutes
	@$(PYTHON) -m pytest $(QUICKLY) --quick $(PYTEST_ARGS)

mutate: setup  ## Change the modules that decide, one step at a time: each change must fail a test (ONLY=ledger, SECONDS_AT_MOST=600)
	@$(PYTHON) -m deploy.mutation $(ONLY) $(if $(SECONDS_AT_MOST),--seconds $(SECONDS_AT_MOST))

soak: setup-tests  ## Half an hour of faults on pumps, disks, clocks, writers, 20,000 histories applied, what is too long for CI (SEED=, SECONDS_EACH=, MODEL_SEEDS=)
	@BINLAKE_SOAK_SEED="$${SEED:-$$RANDOM}" BINLAKE_SOAK_SECONDS="$${SECONDS_EACH:-600}" MODEL_SEEDS="$${MODEL_SEEDS:-20000}" \
		$(PYTHON) -m pytest -m "soak or hypothesis or drawn" -s --session-timeout=86400 tests $(PYTEST_ARGS)

simulate: setup-tests  ## A run of the pump cluster's simulator again, with its trace (SEED=, SCENARIO="failed syncs", SEEDS=100 for more)
	@PYTHONPATH=.:tests $(PYTHON) -m simulator "$${SEED:-1}" --seeds "$${SEEDS:-1}" --scenario "$${SCENARIO:-}"

captures: setup  ## Every capture of BINLAKE_CAPTURES=DIR, compared: core alone at each state, windows at STATES= (12)
	@$(PYTHON) -m deploy.local.captures "$(BINLAKE_CAPTURES)" $(if $(STATES),--states $(STATES))

pictures: setup-tests  ## Take the pictures of docs/operate/pages.md again
	@$(PYTHON) -m deploy.local.pictures

bench-window: setup  ## Rows/s and seconds of each stage on `sysbench_like`, and the floor of the target
	@$(PYTHON) bench/bench_window.py

bench-pump: setup  ## Writes/s, latency, CPU and pulls of a pump beside the floors of disk and RPC
	@$(PYTHON) bench/bench_pump.py

bench-decode: setup  ## Rows/s a core of the decoder beside the plain path and the protobuf split; through Spark
	@$(PYTHON) bench/bench_decode.py

bench-audit: setup  ## What an audit's questions cost on 10 million row changes, before and behind `binlake maintain`
	@$(PYTHON) bench/bench_audit.py

bench-page: setup  ## Milliseconds of each request to the pages, on 10,000 windows and 10 million row changes
	@$(PYTHON) bench/bench_page.py

bench-control: setup  ## What a stage asks of the control tables, while their history grows to 50,000 events
	@$(PYTHON) bench/bench_control.py

bench-apply: setup  ## Rendering, and finalize in each mode, beside the target's floor (SCALE=0.1, ROUNDS=1, ONLY=a)
	@$(PYTHON) bench/bench_apply.py

bench-feed: setup  ## Rows/s of encode and messages/s of publish beside fastavro and a producer of ready bytes (ROUNDS=3)
	@$(PYTHON) bench/bench_feed.py

bench-files: setup  ## Binlog files out and back: rows/s of a core beside writing and reading the bytes alone (ROUNDS=3)
	@$(PYTHON) bench/bench_files.py
	@$(PYTHON) bench/bench_reparo.py

bench-feeder: setup  ## Rows/s a core of a MySQL and a MariaDB log: read, encoded beside one by one, and whole, to commits on a pump, beside the log dump tool; lag at 5,000 rows/s
	@$(PYTHON) bench/bench_feeder.py

bench-snapshot: setup  ## A full load: rows/s and CPU a row from SELECT to a pump, and by windows to MariaDB, beside SELECT, dump and REPLACE (SCALE=0.1 READERS=1,4)
	@$(PYTHON) bench/bench_snapshot.py

bench-proofs: setup  ## Rollbacks proved by TiKV each second and core, beside storing them alone
	@$(PYTHON) bench/bench_proofs.py

bench-lag: setup  ## Seconds from a commit at the source to its row at the target, under Airflow; its idle CPU
	@$(PYTHON) bench/bench_lag.py

bench: setup  ## Rows/s and CPU a row, pumps to MariaDB, by process and stage (BENCH_ARGS="--scale 1 --workload a"; bench/README.md)
	@$(PYTHON) bench/bench_end_to_end.py $(BENCH_ARGS)

flame: setup-tests  ## Flame graphs of each stage (bench/README.md) into .local/flame, and the first frames of each
	@$(PYTHON) bench/bench_end_to_end.py --scale 1 --floors 1 --flame .local/flame $(BENCH_ARGS)
	@tail -n +1 .local/flame/*/first.md

bench-steps: setup-tests  ## CPU us a row of each step in this process, beside what was recorded
	@$(PYTHON) bench/cost_per_row.py

bench-record: setup-tests  ## The same, recorded as what tests/bench compares with, after a step became cheaper
	@$(PYTHON) bench/cost_per_row.py record

bench-all: setup  ## Every measurement of bench/
	@set -e; for one in bench/bench_*.py; do echo "== $$one"; $(PYTHON) "$$one"; done

lint: setup  ## Style, types, import rules, generated files up to date, cited ids known
	@$(PYTHON) -m deploy.checks

proto: setup  ## Generate binlake/wire from proto/
	@$(PYTHON) -m deploy.checks proto

docs: setup  ## Write docs/reference/configuration.md and the tables of docs/reference/lake-tables.md
	@$(PYTHON) -m deploy.checks docs

docs-site: setup  ## Build the site of docs/ into .local/site; a broken link fails
	@.venv/bin/zensical build --strict --clean

stop:  ## Stop what `make demo KEEP=1` left running
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m deploy.local.stop; else echo "nothing is running"; fi

clean: stop  ## Stop all, and remove what the demo and the tools left (not what `setup` installed)
	@rm -rf .local/demo .local/demo-mysql .local/pycache .local/mutation .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
