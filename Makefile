# Every command sets up what it needs, in folders of this one: Python 3.11+ and make are enough.
#
#   make run                        the page, on http://127.0.0.1:7860 (HOST, PORT, MODEL_ID, ...)
#   make run ACCELERATOR=cuda13     the same on NVIDIA GPUs, with older drivers ACCELERATOR=cuda12;
#                                   ACCELERATOR=tpu on TPUs
#   make run-cluster                the page and two replicas under Ray Serve
#   make test                       the tests; make test ARGS="-k browser" for some of them
#   make test-fast                  those that need no JAX, in half a minute
#   make test-slow                  the slow ones: chaos, training, slow networks, ...
#   make test-all                   both kinds in one run, faster than one after the other
#   make test-rare                  before a release: what other tests check in another way
#   make test-reference             the comparison with torch's diffusers
#   make test-incumbent             the same with its old Flax pipelines
#   make test-cluster               the tests of several machines, with Ray Serve on this one
#   make measure                    what this machine takes to draw: a table, and a record to
#                                   contribute; minutes with ACCELERATOR=tpu, MODEL_ID=... or as is
#   make bench                      all that can be measured here, into benchmarks/results:
#                                   measure, clients and bench-cpu; it takes hours
#   make load                       the serving path under more load than there is capacity
#   make chaos                      the same while instances are killed, stopped and cut off
#   make soak                       an hour of mixed load: nothing may grow
#   make lighthouse                 the page as Lighthouse judges it, and what it weighs
#   make bench-tpu                  SDXL at full size compiled for TPUs and analysed, without one
#   make bench-cpu                  the miniature, and SDXL, on a CPU, beside diffusers' pipelines
#   make bench-gpu                  measure, and more about SDXL on an NVIDIA GPU, beside the same
#   make screenshots                the page in each of its states, into out/screenshots
#   make lint                       style, imports, types, size, Dockerfile
#   make release VERSION=0.1.0      the version's tag, once CHANGELOG.md and pyproject.toml have it

# Windows sets OS; the Linux inside WSL does not.
ifeq ($(OS),Windows_NT)
$(error This program runs on Linux and macOS. On Windows, use WSL: \
  https://learn.microsoft.com/windows/wsl/install)
endif

ACCELERATOR ?= cpu
PYTHON ?= python3
ARGS ?=

VENV := .venv
REFERENCE := .venv-reference
INCUMBENT := .venv-incumbent
TPU := .venv-tpu
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# Two more than processors: a browser's tests wait for half of their time.
TESTERS := $(shell expr $(PROCESSORS) + 2)
# Modules are compiled when they are first imported: most of them never are.
PIP := -m pip --disable-pip-version-check install --quiet --no-compile

.DEFAULT_GOAL := help
.PHONY: help setup run run-cluster test test-slow test-all test-rare test-reference test-incumbent \
  test-cluster measure bench load chaos soak lighthouse bench-tpu bench-cpu bench-gpu screenshots \
  lint release clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.installed-$(ACCELERATOR)

# The next start finds the compiled programs.
run: export CACHE_DIR ?= $(if $(XDG_CACHE_HOME)$(HOME),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sdxl-jax)
run: setup
	$(VENV)/bin/python app.py $(ARGS)

run-cluster: setup $(VENV)/.installed-cluster
	$(VENV)/bin/serve run cluster:app $(ARGS)

# Tests start many programs, which would all compile the same sources.
test test-fast test-slow test-all test-rare: export PYTHONDONTWRITEBYTECODE =

test: MARKED := not slow and not rare
test-slow: MARKED := slow and not rare
test-all: MARKED := not rare
test-rare: MARKED := rare

test test-slow test-all test-rare: $(VENV)/.installed-test tests/node/node_modules/.installed
	sh tests/chromium.sh $(VENV)/bin/python
	$(VENV)/bin/python -m pytest -m "$(MARKED)" \
	  --numprocesses $(TESTERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

# Without JAX, Chromium and tests that wait or measure.
test-fast: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest --without-jax -m "not slow and not rare and not lasting" \
	  --ignore tests/end_to_end --ignore tests/reference --ignore tests/test_commands.py \
	  --numprocesses $(PROCESSORS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-incumbent: $(INCUMBENT)/.installed
test-incumbent: COMPARED := tests/reference/test_incumbent.py
test-reference: COMPARED := tests/reference --ignore tests/reference/test_incumbent.py

test-reference test-incumbent: $(REFERENCE)/.installed
	$(REFERENCE)/bin/python -m pytest $(COMPARED) --numprocesses $(PROCESSORS) \
	  --maxprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)

test-cluster: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest tests/cluster $(ARGS)

measure: $(VENV)/.installed-$(ACCELERATOR)
	$(VENV)/bin/python -m benchmarks.measure $(ARGS)

bench: $(VENV)/.installed-$(ACCELERATOR) $(VENV)/.installed-test
	sh tests/chromium.sh $(VENV)/bin/python
	$(MAKE) --no-print-directory measure
	$(VENV)/bin/python -m benchmarks.clients
	$(MAKE) --no-print-directory bench-cpu
	$(VENV)/bin/python -m tools.figures

chaos load soak: $(VENV)/.installed-$(ACCELERATOR)
	$(VENV)/bin/python -m benchmarks.$@ $(ARGS)

lighthouse: $(VENV)/.installed-test benchmarks/node/node_modules/.installed
	sh tests/chromium.sh $(VENV)/bin/python
	$(VENV)/bin/python -m benchmarks.lighthouse

bench-tpu: $(TPU)/.installed
	$(TPU)/bin/python -m benchmarks.tpu $(ARGS)

bench-cpu: $(VENV)/.installed-$(ACCELERATOR) $(REFERENCE)/.installed $(INCUMBENT)/.installed
	$(REFERENCE)/bin/python $(PIP) --requirement requirements-bench-cpu.txt
	$(VENV)/bin/python -m benchmarks.cpu $(ARGS)

# Gigabytes are installed only where there is a GPU to measure.
bench-gpu:
	@if ! command -v nvidia-smi >/dev/null; then \
	  echo "There is no NVIDIA GPU here (no nvidia-smi): nothing is measured."; \
	else \
	  $(MAKE) --no-print-directory $(VENV)/.installed-cuda13 $(REFERENCE)/.installed \
	    $(INCUMBENT)/.installed-cuda13 && \
	  $(VENV)/bin/python -m benchmarks.measure --cache out/gpu && \
	  $(VENV)/bin/python -m benchmarks.measure --cache out/gpu \
	    profile fidelity torch torch.compile flax $(ARGS); \
	fi

screenshots: $(VENV)/.installed-test
	sh tests/chromium.sh $(VENV)/bin/python
	$(VENV)/bin/python -m tools.screenshots $(ARGS)

lint: $(VENV)/.installed-test tests/node/node_modules/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pyright
	$(VENV)/bin/python -m tools.statements
	$(VENV)/bin/codespell
	$(VENV)/bin/node tests/node/node_modules/remark-cli/cli.js --rc-path tests/node/.remarkrc.mjs \
	  --frail --quiet --no-stdout *.md benchmarks docs examples pipeline ui
	$(VENV)/bin/node tests/node/node_modules/eslint/bin/eslint.js --config tests/node/eslint.config.js \
	  ui tests/node
	@if [ -x $(VENV)/bin/hadolint ]; then echo "hadolint Dockerfile" && $(VENV)/bin/hadolint Dockerfile; fi

# Only a version whose date and changes are written down gets a tag.
release:
	@test -z "$$(git status --porcelain)" || \
	  { echo "There are changes without a commit: commit or remove them first." >&2; exit 1; }
	@grep -qxF 'version = "$(VERSION)"' pyproject.toml || \
	  { echo "pyproject.toml has no line 'version = \"$(VERSION)\"'; give its version as VERSION=..." >&2; exit 1; }
	@grep -Eqx '## $(subst .,[.],$(VERSION)) - [0-9]{4}-[0-9]{2}-[0-9]{2}' CHANGELOG.md || \
	  { echo "CHANGELOG.md has no heading '## $(VERSION) - YYYY-MM-DD'." >&2; exit 1; }
	git tag --annotate "v$(VERSION)" --message "Version $(VERSION)"
	@echo "Publish it: git push origin v$(VERSION)"

clean:
	rm -rf $(VENV) $(REFERENCE) $(INCUMBENT) $(TPU) */node/node_modules

# An environment is made once; its packages are installed again only when a list of them changes.
$(VENV)/bin/python $(REFERENCE)/bin/python $(INCUMBENT)/bin/python $(TPU)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed as '$(PYTHON)'; name another with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(@D)/..

# One that was left half made has no pip: it is made anew.
REPAIR = $(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(@D)

$(VENV)/.installed-%: requirements-%.txt requirements.txt | $(VENV)/bin/python
	@$(REPAIR)
	$(VENV)/bin/python $(PIP) --requirement $<
	@touch $@

# Node comes with the requirements of the tests: none need be on the machine.
%/node_modules/.installed: %/package.json %/package-lock.json $(VENV)/.installed-test
	$(VENV)/bin/npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $*
	@touch $@

# torch comes first and alone: named exactly, it is not replaced by a build other packages prefer.
$(REFERENCE)/.installed: requirements-reference.txt requirements.txt | $(REFERENCE)/bin/python
	@$(REPAIR)
	$(REFERENCE)/bin/python $(PIP) "$$(grep '^torch==' $<)"
	$(REFERENCE)/bin/python $(PIP) --requirement $<
	@touch $@

$(INCUMBENT)/.installed: requirements-incumbent.txt | $(INCUMBENT)/bin/python
	@$(REPAIR)
	$(INCUMBENT)/bin/python $(PIP) --requirement $<
	@touch $@

$(INCUMBENT)/.installed-cuda13: $(INCUMBENT)/.installed
	$(INCUMBENT)/bin/python $(PIP) "jax[cuda13]$$(sed -n 's/^jax==/==/p' requirements-incumbent.txt)"
	@touch $@

$(TPU)/.installed: requirements-bench-tpu.txt requirements.txt | $(TPU)/bin/python
	@$(REPAIR)
	$(TPU)/bin/python $(PIP) --requirement $<
	@touch $@
