# The two commands of this project: `make demo` shows what it does, `make test` proves that it works. `make help` lists the others.
# Nothing but Python 3.11 or newer is needed; everything else is installed into folders of this project.

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
endif
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
PLUGINS := my-plugin context-plugin optional-plugin call-guard file-operator bilibili-fetcher service-override text-nodes creation-assistant
FOLDERS := $(addprefix example_plugins/,$(PLUGINS))
# More than two processors: many tests wait for processes and servers, those of `make test` about half of their time.
WORKERS := 3
test: WORKERS := 4
PYTEST_FLAGS ?= -n $(WORKERS) --dist worksteal
# The tests start hundreds of processes: without kept bytecode each would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help test fast lint demo soak mutants bench clean python databases conformance mcp-servers

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

test: .venv/.ready databases conformance mcp-servers ## build the environment and run all tests, style and type checks included
	.venv/bin/python -m pytest $(PYTEST_FLAGS)

fast: .venv/.ready databases ## the tests without the slow ones, while you work
	.venv/bin/python -m pytest --durations=10 --durations-min=0.5 -m "not slow and not soak" $(PYTEST_FLAGS)

lint: .venv/.ready ## only the style, type and layer checks
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

soak: .venv/.ready ## the long-running tests: kills, floods, thousands of processes
	.venv/bin/python -m pytest -m soak $(PYTEST_FLAGS)

mutants: .venv/.ready ## change the code that decides in 200 places, one at a time, and count what the tests notice
	@$(PIP) .venv/bin/pip install -q pytest-cov
	.venv/bin/python -m tests.mutants $(MUTANTS_FLAGS)

bench: .bench/.ready ## measure against peers and floors, in this run
	.bench/bin/python tests/benchmarks/report.py $(BENCH_FLAGS)

# The demo is what a stranger would do: build packages, install them with pip, open a host. After the first time it needs no
# network: what pip needs is kept in .demo/packages.
demo: .demo/tools/.ready ## install tavern-core and the example plugins as packages and run a transcript
	@rm -rf .demo/wheels .demo/venv .demo/home .demo/workspace
	@echo "Building wheels of tavern-core and $(words $(PLUGINS)) plugins ..."
	@$(PIP) .demo/tools/bin/pip wheel -q --no-deps --no-build-isolation --no-index -w .demo/wheels . $(FOLDERS)
	@echo "Installing them with pip into a fresh environment ..."
	@$(PYTHON) -m venv --without-pip .demo/venv
	@$(PIP) .demo/tools/bin/pip --python .demo/venv/bin/python install -q --no-index --find-links .demo/packages .demo/wheels/*.whl
	@.demo/venv/bin/python example_plugins/demo/demo.py .demo
	@TAVERN_HOME=.demo/home .demo/venv/bin/tavern logs verify

clean: ## remove everything that was built
	rm -rf .venv .demo .bench .mutants build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments -----------------------------------------------------------------------------------------------------------

python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make environments; on Debian: apt install python3-venv"; exit 1; }

# The guard on SQL is tried against real servers, which the tests start themselves in temporary folders.
databases:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && test -x /usr/sbin/mariadbd && command -v redis-server >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql mariadb-server redis-server; \
		else echo "PostgreSQL, MariaDB or Redis is missing, and their tests will fail: apt install postgresql mariadb-server redis-server"; fi; }

.venv/.ready: pyproject.toml Makefile | python
	$(PYTHON) -m venv .venv
	$(PIP) .venv/bin/pip install -q 'hatchling>=1.26' editables
	$(PIP) .venv/bin/pip install -q --no-build-isolation -e '.[dev]'
	@touch $@

# The official conformance suites of MCP; they need Node 24, which npm brings. Without npm their tests are left out, except in CI.
conformance: .venv/.ready
	@test -e .venv/conformance/.ready || { command -v npm >/dev/null 2>&1 || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm; fi; }; \
		if command -v npm >/dev/null 2>&1; then mkdir -p .venv/conformance && \
			npm install --silent --no-audit --no-fund --prefix .venv/conformance node@24 @modelcontextprotocol/conformance@0.2.0-alpha.12 \
			&& touch .venv/conformance/.ready; \
		else echo "npm is missing: the conformance suites of MCP are left out"; fi; }

# MCP servers that people use, from npm; as the suites, their tests are left out where there is no npm.
mcp-servers: conformance
	@test -e .venv/conformance/.servers || { if command -v npm >/dev/null 2>&1; then \
		npm install --silent --no-audit --no-fund --prefix .venv/conformance \
			@modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31 && touch .venv/conformance/.servers; fi; }

.bench/.ready: pyproject.toml tests/benchmarks/requirements.txt | python
	$(PYTHON) -m venv .bench
	$(PIP) .bench/bin/pip install -q -e . -r tests/benchmarks/requirements.txt
	@touch $@

.demo/tools/.ready: pyproject.toml $(addsuffix /pyproject.toml,$(FOLDERS)) | python
	@echo "Preparing .demo (the first time: a minute, and it needs the network) ..."
	@rm -rf .demo/tools .demo/packages
	@$(PYTHON) -m venv .demo/tools
	@$(PIP) .demo/tools/bin/pip install -q 'hatchling>=1.26'
	@$(PIP) .demo/tools/bin/pip wheel -q --no-build-isolation -w .demo/packages .
	@rm -f .demo/packages/tavern_core-*
	@touch $@
