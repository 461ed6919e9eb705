# The commands for developers. `make help` lists the targets; every target can be run repeatedly.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo demo-mysql test all-tests test-quick mutate soak simulate captures pictures bench-window bench-pump bench-decode bench-audit bench-page bench-control bench-apply bench-lag bench-feed bench-files bench-feeder bench-snapshot bench-proofs bench bench-engine flame bench-steps bench-trace bench-scale bench-transaction bench-record bench-all lint check-wheel release licenses proto docs docs-site stop clean

# The installers need only Python 3.11 and no packages. The system's Python is tried first: distributions compile it with
# profile-guided optimisation, pyenv by default does not, and then everything takes up to a fifth more CPU.
# `PYTHON311=python3.11` chooses another one.
PYTHON311 := $(shell for one in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do \
	"$$one" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && command -v "$$one" && break; done)
PYTHON := .venv/bin/python
KEEP ?=
LAKE ?=
PYTEST_ARGS ?=
# Chosen for two cores: each further process loads all tests and starts its own servers, ten seconds of CPU or more.
# One process runs all tests of a file, and all files that share an expensive fixture (tests/support/sharing.py); the
# most expensive files run first.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder
# The timeout of a test works only while its process runs Python code; this one ends a process that is deadlocked, with its
# stacks printed, and with it the run.
PARALLEL += -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true --max-worker-restart=0
BINLAKE_CAPTURES ?= tests/captures

# If Python must not write bytecode next to the sources, write it to a separate folder, from the first import on:
# otherwise each test process compiles modules for a second before tests/support/bytecode.py sets that folder.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.local/pycache
endif

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Install everything missing into this checkout: uv, locked packages, Delta jars, MariaDB
	@test -n "$(PYTHON311)" || { echo "error: Python 3.11 is needed (Debian: apt-get install python3.11)" >&2; exit 1; }
	@$(PYTHON311) -m deploy.setup --without-tests

setup-tests:  ## Like setup, and the tools that only tests use (etcd, Kafka, MySQL, HTTP/2 tools, a browser, Docker Compose)
	@test -n "$(PYTHON311)" || { echo "error: Python 3.11 is needed (Debian: apt-get install python3.11)" >&2; exit 1; }
	@$(PYTHON311) -m deploy.setup

demo: setup  ## Replicate a recorded TiDB through pumps, Airflow and Spark to MariaDB and compare; KEEP=1 leaves it running, FEED=1 adds Kafka, LAKE=s3 takes an object store and a Spark cluster
	@$(PYTHON) -m deploy.local.demo $(if $(KEEP),--keep) $(if $(FEED),--feed) $(if $(LAKE),--lake $(LAKE))

demo-mysql: setup  ## Replicate two sharded MariaDB servers (full load, then their logs) to one MariaDB during writes and compare; KEEP=1
	@$(PYTHON) -m deploy.local.demo_mysql $(if $(KEEP),--keep)

# The type checker keeps one of two cores busy for a minute. Meanwhile the tests' tools are installed and the tests start.
test: setup  ## Install, lint and run all tests except the long ones of `make soak`
	@$(MAKE) --no-print-directory --jobs=2 lint all-tests

all-tests: setup-tests
	@$(PYTHON) -m pytest $(PARALLEL) --draw-one-of 6 $(PYTEST_ARGS)

test-quick: setup  ## Run the tests that are cheap and need no server, chosen by marks (tests/support/selection.py): one or two minutes
	@$(PYTHON) -m pytest $(PARALLEL) --quick $(PYTEST_ARGS)

mutate: setup  ## Mutation tests: change the critical modules, one step at a time; a test must fail each time (ONLY=ledger, SECONDS_AT_MOST=600)
	@$(PYTHON) -m deploy.mutation $(ONLY) $(if $(SECONDS_AT_MOST),--seconds $(SECONDS_AT_MOST))

soak: setup-tests  ## Half an hour of faults on pumps, disks, clocks and writers, 20,000 random histories, and tests too long for CI (SEED=, SECONDS_EACH=, MODEL_SEEDS=, WORLD_SEEDS=)
	@BINLAKE_SOAK_SEED="$${SEED:-$$RANDOM}" BINLAKE_SOAK_SECONDS="$${SECONDS_EACH:-600}" MODEL_SEEDS="$${MODEL_SEEDS:-20000}" \
		$(PYTHON) -m pytest -m "soak or hypothesis or drawn" -s --session-timeout=86400 tests $(PYTEST_ARGS)

simulate: setup-tests  ## Repeat a run of the pump cluster's simulator and print its trace (SEED=, SCENARIO="failed syncs", SEEDS=100 for more runs)
	@PYTHONPATH=.:tests $(PYTHON) -m simulator "$${SEED:-1}" --seeds "$${SEEDS:-1}" --scenario "$${SCENARIO:-}"

captures: setup  ## Replay and compare every capture of BINLAKE_CAPTURES=DIR: the core alone at each state, windows at STATES= states (12)
	@$(PYTHON) -m deploy.local.captures "$(BINLAKE_CAPTURES)" $(if $(STATES),--states $(STATES))

pictures: setup-tests  ## Take new screenshots for docs/operate/pages.md
	@$(PYTHON) -m deploy.local.pictures

bench-window: setup  ## Rows/s and seconds of each stage on `sysbench_like`, and the target's floor
	@$(PYTHON) bench/bench_window.py

bench-pump: setup  ## Writes/s, latency, CPU and pulls of a pump, compared with the floors of disk and RPC
	@$(PYTHON) bench/bench_pump.py

bench-decode: setup  ## Rows/s per core of the decoder, compared with the plain path and the protobuf split
	@$(PYTHON) bench/bench_decode.py

bench-audit: setup  ## Cost of audit queries on 10 million row changes, before and after `binlake maintain`
	@$(PYTHON) bench/bench_audit.py

bench-page: setup  ## Milliseconds of each request to the pages, on 10,000 windows and 10 million row changes
	@$(PYTHON) bench/bench_page.py

bench-control: setup  ## Cost of a stage's reads of the control tables while their history grows to 50,000 events
	@$(PYTHON) bench/bench_control.py

bench-apply: setup  ## Rendering, and finalize in each mode, compared with the target's floor (SCALE=0.1, ROUNDS=1, ONLY=a)
	@$(PYTHON) bench/bench_apply.py

bench-feed: setup  ## Rows/s of encode and messages/s of publish, compared with fastavro and a producer of prepared bytes (ROUNDS=3)
	@$(PYTHON) bench/bench_feed.py

bench-files: setup  ## Write and restore binlog files: rows/s per core, compared with only writing and reading the bytes (ROUNDS=3)
	@$(PYTHON) bench/bench_files.py
	@$(PYTHON) bench/bench_reparo.py

bench-feeder: setup  ## Rows/s per core of the feeder on a MySQL and a MariaDB log (reading, encoding, and up to a pump), compared with the log dump tool; lag at 5,000 rows/s
	@$(PYTHON) bench/bench_feeder.py

bench-snapshot: setup  ## A full load from MariaDB to MariaDB beside SELECT + REPLACE, mariadb-dump and mydumper: rows/s, CPU, memory (BENCH_ARGS="--rows 5000000 --tables 1 50 --shape narrow wide")
	@$(PYTHON) bench/bench_snapshot.py $(BENCH_ARGS)

bench-proofs: setup  ## Rollbacks verified by TiKV per second and core, compared with only storing them
	@$(PYTHON) bench/bench_proofs.py

bench-lag: setup  ## Seconds from a commit at the source until its row is at the target, under Airflow; Airflow's idle CPU
	@$(PYTHON) bench/bench_lag.py

bench: setup  ## Rows/s and CPU per row from pumps to MariaDB, by process and stage (BENCH_ARGS="--scale 1 --workload a"; bench/README.md)
	@$(PYTHON) bench/bench_end_to_end.py $(BENCH_ARGS)

bench-engine: setup  ## The size of a window from which Spark is faster than one process (BENCH_ARGS="--scale 0.1,1")
	@$(PYTHON) bench/bench_engine.py $(BENCH_ARGS)

flame: setup-tests  ## Write a flame graph of each stage to .local/flame (bench/README.md) and print the top frames
	@$(PYTHON) bench/bench_end_to_end.py --scale 1 --floors 1 --flame .local/flame $(BENCH_ARGS)
	@tail -n +1 .local/flame/*/first.md

bench-steps: setup-tests  ## CPU us per row of each processing step, compared with the recorded figures
	@$(PYTHON) bench/cost_per_row.py

bench-scale: setup-tests  ## How the cost of a window grows with rows, tables, DDL, pumps, history, replications, executors (BENCH_ARGS="--only tables")
	@$(PYTHON) bench/bench_scale.py $(BENCH_ARGS)

bench-transaction: setup-tests  ## The memory that one large transaction costs a pump and the windows' process (BENCH_ARGS="--mib 200,1024")
	@$(PYTHON) bench/bench_transaction.py $(BENCH_ARGS)

bench-trace: setup-tests  ## What one INSERT costs in functions, opens of tables and reads of control tables, from plan to finalize
	@$(PYTHON) -m pytest -q -s --no-header tests/bench/test_window_trace.py

bench-record: setup-tests  ## Run bench-steps and record its figures for tests/bench, after a step became cheaper
	@$(PYTHON) bench/cost_per_row.py record

bench-all: setup  ## Run every benchmark of bench/
	@set -e; for one in bench/bench_*.py; do echo "== $$one"; $(PYTHON) "$$one"; done

lint: setup  ## Check style, types, import rules, that generated files are up to date, and that cited ids exist
	@$(PYTHON) -m deploy.checks

check-wheel: setup  ## Install the wheel as a pump's host, into another Airflow and beside another Spark, and use it there (ONLY=pump; CONSTRAINT=FILE)
	@$(PYTHON) -m deploy.wheel $(ONLY) $(if $(CONSTRAINT),--constraint $(CONSTRAINT))

release: setup-tests  ## Test a clean checkout, then make packages, notes, a commit and a tag: VERSION=0.2.0
	@$(PYTHON) -m deploy.release $(VERSION)

licenses: setup  ## List the licence of each package that `binlake[all]` installs
	@$(PYTHON) -m deploy.licenses

proto: setup  ## Generate binlake/wire from proto/
	@$(PYTHON) -m deploy.checks proto

docs: setup  ## Write docs/reference/configuration.md and the tables of docs/reference/lake-tables.md
	@$(PYTHON) -m deploy.checks docs

docs-site: setup  ## Build the website of docs/ into .local/site; a broken link is an error
	@.venv/bin/zensical build --strict --clean

stop:  ## Stop everything that `make demo KEEP=1` left running
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m deploy.local.stop; else echo "nothing is running"; fi

clean: stop  ## Stop everything and delete the files of the demo and the tools (not the installation of `setup`)
	@rm -rf .local/demo .local/demo-mysql .local/pycache .local/mutation .local/data-folders .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
