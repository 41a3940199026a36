# Everything a person does here. `make` alone lists it; demo and test set up what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help setup demo test test-all fuzz chaos check format bench wheel pyfiles dashboard tables-doc rules-doc questions-doc test-peer estate record-estate record-sample clean

PY := .venv/bin/python
LAKE ?= .lake/demo
# Two processes, each with a Spark session (4 GB); a file's tests stay together, for they share fixtures.
PYTEST := .venv/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?=
SCHEMA ?= msmq
FUZZ ?=
FUZZ_SECONDS ?= 20
CHAOS_KILLS ?= 200
CHAOS_PAIRS ?= 50
CHAOS_ARGS ?=
BENCH_ARGS ?=
PEER_ARGS ?=
ESTATE_ARGS ?=
RECORD_ARGS ?=

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Python packages, Delta's jars, Java and capture tools; a second time it does nothing
	@tools/setup.sh

demo: setup  ## run the whole pipeline on data/ and print what it found (LAKE=... elsewhere)
	@$(PY) -m jobs.run_all --conf conf/local.yml --captures data/sample data/estate/wire \
	  --snapshots data/estate/snapshots --lake $(LAKE) --pages $(LAKE)/pages

test: setup  ## run the tests (PYTEST_ARGS=... adds arguments)
	@$(PYTEST) $(PYTEST_ARGS)

test-all: setup  ## the long tests too; a missing program or data set is a failure
	@$(PYTEST) --long --require-tools $(PYTEST_ARGS)

fuzz: setup  ## let atheris try the decoders (FUZZ_SECONDS=20 for each; FUZZ="messages comqc": these alone)
	@PYTHONPATH=tests:tests/support $(PY) -m fuzz.run --seconds $(FUZZ_SECONDS) $(FUZZ)

chaos: setup  ## kill runs, fill disks, run two at once; tables must not differ (CHAOS_KILLS=200, CHAOS_PAIRS=50)
	@PYTHONPATH=tests:tests/support:. $(PY) -m chaos.run --kills $(CHAOS_KILLS) --pairs $(CHAOS_PAIRS) $(CHAOS_ARGS)

check: setup  ## lint, format and types, as CI does
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: setup  ## put the code in its format
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

bench: setup  ## measure the reader against tshark and Delta's limit (BENCH_ARGS=--quick: in minutes)
	@$(PY) -m bench $(BENCH_ARGS)

wheel: setup  ## build the wheel into dist/ (needs no network)
	@$(PY) -m hatchling build -t wheel

pyfiles: setup  ## dist/pyfiles.zip, for spark-submit --py-files
	@PYTHONPATH=. $(PY) tools/build_pyfiles.py dist/pyfiles.zip

dashboard: setup  ## write the dashboard that databricks.yml deploys (SCHEMA=msmq)
	@PYTHONPATH=. $(PY) tools/write_bundle_dashboard.py conf/msmq.lvdash.json $(SCHEMA)

tables-doc: setup  ## write docs/tables.md from schemas/
	@PYTHONPATH=. $(PY) tools/write_tables_doc.py docs/tables.md

rules-doc: setup  ## write docs/rules.md from the rules and their tests
	@PYTHONPATH=. $(PY) tools/write_rules_doc.py docs/rules.md

questions-doc: setup  ## write docs/questions.md and docs/alerts.md from the views and conditions
	@PYTHONPATH=. $(PY) tools/write_questions_doc.py docs

test-peer: setup  ## start the test queue manager (PEER_ARGS=... gives it ports)
	@PYTHONPATH=tests/support $(PY) -m peer.server $(PEER_ARGS)

estate: setup  ## start a simulated estate to collect from (ESTATE_ARGS=... --conf FILE, --every SECONDS)
	@PYTHONPATH=tests/support $(PY) -m peer.estate $(ESTATE_ARGS)

record-estate: setup  ## record data/estate anew, by the collector and on the wire (as root)
	@PYTHONPATH=tests/support $(PY) -m peer.record_estate

record-sample: setup  ## record data/sample anew (as root: it makes network namespaces)
	@PYTHONPATH=tests/support $(PY) -m peer.record $(ARGS)

clean:  ## take away what runs and tools have made; .venv and .cache stay
	@rm -rf dist .lake .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
