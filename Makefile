# `make train` and `make test` do all the set-up. They need Python 3.11 or newer with venv, git and make, nothing else.
#
#   PYTHON=python3.12   the interpreter for .venv; by default the first that runs and is new enough
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu   take PyTorch from there: a smaller download, without CUDA
#   ARGS="--actors 4"   further arguments of `make train`

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$python; break; }; done)
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DELETE_ON_ERROR:
.PHONY: help train test venv lint types imports proto proto-check docs docs-check dashboard dashboard-check monitoring monitoring-check checkov unit e2e kind-e2e acceptance peers reverb format constraints clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: venv ## train CartPole-v1 on this machine until it is solved
	$(BIN)/headrace train cartpole $(ARGS)

test: lint types imports proto-check docs-check dashboard-check monitoring-check unit ## everything that CI checks

venv: $(INSTALLED) ## create .venv and install Headrace into it

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with the venv module was found: install one" \
	"(Debian, Ubuntu: apt-get install python3-venv) or name it, make PYTHON=/path/to/python3" >&2; exit 2; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	-c constraints.txt -e '.[dev]'
	@touch $@

lint: venv ## style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: venv ## mypy --strict
	$(BIN)/mypy

imports: venv ## who may import whom
	$(BIN)/lint-imports

proto: venv ## generate headrace/rpc/v1 from proto/
	$(BIN)/python proto/generate.py

proto-check: venv ## the generated code is what proto/ gives
	$(BIN)/python proto/generate.py --check

docs: venv ## generate docs/metrics.md from the metric catalogue
	$(BIN)/python -m headrace.telemetry.reference > $(VENV)/metrics.md
	cp $(VENV)/metrics.md docs/metrics.md

docs-check: venv ## the generated pages are what the code says
	$(BIN)/python -m headrace.telemetry.reference | diff -u docs/metrics.md - || { echo "run: make docs" >&2; exit 1; }

dashboard: venv ## generate deploy/grafana/dashboards from dashboard.py
	$(BIN)/python deploy/grafana/dashboard.py

dashboard-check: venv ## the generated dashboard is what dashboard.py says
	$(BIN)/python deploy/grafana/dashboard.py --check

monitoring: venv ## copy rules and dashboard into deploy/k8s/components/monitoring
	$(BIN)/python deploy/k8s/monitoring.py

monitoring-check: venv ## Kubernetes has the rules and the dashboard of compose
	$(BIN)/python deploy/k8s/monitoring.py --check

checkov: venv $(VENV)/checkov/.installed ## the checker of manifests, in an environment of its own

$(VENV)/checkov/.installed: $(INSTALLED)
	$(BIN)/python -m venv $(VENV)/checkov
	$(VENV)/checkov/bin/pip install --disable-pip-version-check --no-compile --quiet checkov==3.3.30
	@touch $@

unit: venv ## pytest, two files at a time and beside them what mostly waits, without acceptance tests and containers
	@{ $(MAKE) --no-print-directory checkov && $(BIN)/pytest -m waits; } > $(VENV)/waits.log 2>&1 & waits=$$!; failed=0; \
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m 'not acceptance and not e2e and not kind and not waits' || failed=1; \
	wait $$waits || failed=1; cat $(VENV)/waits.log; exit $$failed

e2e: venv ## tests with real containers: builds the images, needs Docker, Compose, Podman and root (they cut networks)
	$(BIN)/pytest -m e2e tests/e2e $(ARGS)

kind-e2e: venv ## docs/kubernetes.md on a cluster of kind's: needs Docker and kind, not part of CI
	$(BIN)/pytest -m kind tests/kind $(ARGS)

acceptance: venv ## what the project promises about whole runs: minutes, on an idle machine
	$(BIN)/pytest -m acceptance

peers: venv ## CartPole-v1 by Headrace and three other libraries, one table: an idle machine, most of an hour
	$(BIN)/python benchmarks/peers/run.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) $(ARGS)

reverb: venv ## replay beside Reverb, one table: an idle machine, two minutes
	$(BIN)/python benchmarks/peers/replay.py $(ARGS)

format: venv ## fix style and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

constraints: venv ## pin what .venv has now
	{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --exclude-editable --exclude setuptools | sed 's/+cpu$$//'; } > $(VENV)/constraints.txt
	cp $(VENV)/constraints.txt constraints.txt

clean: ## remove .venv and every cache; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
