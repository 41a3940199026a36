# All tasks of the project. `make` lists them. demo, test and the others run set-up first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Python keeps what it compiles, whatever the caller's environment says: set-up compiles nothing, and tests start Python
# again and again. With the modules compiled, a command starts in a third of the time.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup packages demo test test-all fuzz chaos check format bench wheel pyfiles dashboard lock docs tables-doc rules-doc questions-doc configuration-doc targets-doc notices-doc glossary outputs-doc dissector wireshark-doc rooms-doc test-peer estate record-estate record-sample record-transfers clean

PY := .venv/bin/python
LAKE ?= .lake/demo
# Three processes, each with a Spark session (5 GB): two wait for a quarter of the time, on two cores. The tests of a
# file run in one process, because they share fixtures.
PYTEST := .venv/bin/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?=
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
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install Python packages, the command msmq, Delta's jars, Java and capture tools; does nothing if all is there
	@tools/setup.sh

packages:  ## the part of set-up that check needs: Python packages in .venv, and Java
	@tools/setup.sh packages

demo: setup  ## run the whole pipeline on data/ and print a summary (LAKE=...: another folder for the tables)
	@.venv/bin/msmq run_all --conf conf/local.yml --set quality.in_runs=true \
	  --captures data/sample data/estate/wire data/transfers --snapshots data/estate/snapshots \
	  --lake $(LAKE) --pages $(LAKE)/pages

test: setup  ## run the tests (PYTEST_ARGS=...: more arguments for pytest)
	@$(PYTEST) $(PYTEST_ARGS)

test-all: setup  ## run all tests, also the long ones; a missing program or data set is a failure
	@$(PYTEST) --long --require-tools $(PYTEST_ARGS)

fuzz: setup  ## fuzz the decoders with atheris, and whole runs (FUZZ_SECONDS=20 for each; FUZZ="messages run_all": only these)
	@PYTHONPATH=tests:tests/support $(PY) -m fuzz.run --seconds $(FUZZ_SECONDS) $(FUZZ)

chaos: setup  ## kill runs, fill disks, run two at a time; the tables must be equal (CHAOS_KILLS=200, CHAOS_PAIRS=50)
	@PYTHONPATH=tests:tests/support:. $(PY) -m chaos.run --kills $(CHAOS_KILLS) --pairs $(CHAOS_PAIRS) $(CHAOS_ARGS)

check: packages  ## check style, format and types, as CI does
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: setup  ## format the code and fix what ruff can fix
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

bench: setup  ## measure speed and memory, against tshark, impacket and Delta (BENCH_ARGS=--quick: takes minutes)
	@$(PY) -m bench $(BENCH_ARGS)

wheel: setup  ## build the wheel in dist/ (needs no network)
	@$(PY) -m hatchling build -t wheel

pyfiles: setup  ## build dist/pyfiles.zip, for spark-submit --py-files
	@PYTHONPATH=. $(PY) tools/build_pyfiles.py dist/pyfiles.zip

dashboard: setup  ## write the dashboard that databricks.yml deploys
	@PYTHONPATH=. $(PY) tools/write_bundle_dashboard.py conf/dashboard.yml

lock: setup  ## write the hashes of the packages into conf/requirements.txt, after a version was changed there
	@tools/lock_packages.sh

docs: tables-doc rules-doc questions-doc configuration-doc targets-doc rooms-doc notices-doc glossary dissector outputs-doc  ## write the generated pages

tables-doc: setup  ## write tables.md from schemas/ and example_rows.json
	@PYTHONPATH=. $(PY) tools/write_tables_doc.py docs/reference/tables.md

rules-doc: setup  ## write rules.md and the versions of the rules from their code
	@PYTHONPATH=. $(PY) tools/write_rules_doc.py docs/reference/rules.md
	@PYTHONPATH=. $(PY) tools/write_rule_versions.py pipeline/findings/rules/versions.py

questions-doc: setup  ## write questions.md and alerts.md from the views and conditions
	@PYTHONPATH=. $(PY) tools/write_questions_doc.py docs/reference

configuration-doc: setup  ## write configuration.md from jobs/config.py and conf/local.yml
	@PYTHONPATH=. $(PY) tools/write_configuration_doc.py docs/reference/configuration.md

targets-doc: setup  ## write targets.md from conf/targets
	@PYTHONPATH=. $(PY) tools/write_targets_doc.py docs/reference/targets.md

notices-doc: setup  ## write THIRD_PARTY_NOTICES.md from the installed packages
	@PYTHONPATH=. $(PY) tools/write_notices_doc.py THIRD_PARTY_NOTICES.md

glossary: setup  ## write the terms that the HTML site explains, from docs/start/glossary.md
	@PYTHONPATH=. $(PY) tools/write_site_glossary.py pipeline/dashboards/static/glossary.json

outputs-doc: setup  ## write what commands print into the pages that show it, on lakes of data/
	@PYTHONPATH=. $(PY) tools/write_command_outputs.py

dissector: setup  ## write msmq.lua, the dissector for Wireshark, from the decoders' declarations and tools/dissector
	@PYTHONPATH=. $(PY) tools/write_dissector.py jobs/analysis/msmq.lua

wireshark-doc: dissector  ## write what tshark prints into wireshark.md, and draw its picture (needs tshark, chromium)
	@PYTHONPATH=. $(PY) tools/write_wireshark_page.py

rooms-doc: setup  ## draw the rooms of pipeline/ and their imports into architecture.md
	@$(PY) tools/draw_rooms.py

test-peer: setup  ## start the test queue manager (PEER_ARGS=...: its ports)
	@PYTHONPATH=tests/support $(PY) -m peer.server $(PEER_ARGS)

estate: setup  ## start simulated queue managers to collect from (ESTATE_ARGS=... --conf FILE, --every SECONDS)
	@PYTHONPATH=tests/support $(PY) -m peer.estate $(ESTATE_ARGS)

record-estate: setup  ## record data/estate again, with the collector and on the wire (as root)
	@PYTHONPATH=tests/support $(PY) -m peer.record_estate

record-sample: setup  ## record data/sample again (as root, because it makes network namespaces)
	@PYTHONPATH=tests/support $(PY) -m peer.record $(RECORD_ARGS)

record-transfers: setup  ## record data/transfers again (as root, because it makes a network namespace)
	@PYTHONPATH=tests/support $(PY) -m peer.transfers.record $(RECORD_ARGS)

clean:  ## remove the files that runs and tools have made; keep .venv and .cache
	@rm -rf dist .lake .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
