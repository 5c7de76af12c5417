# Every path here is relative, so that the checkout may live in a folder with spaces in its name.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo cluster-demo paper-demo dashboard screenshots check browser test-fast test check-deploy \
  ahead-of-time simulators test-simulators rllib soak soak-short docs release fuzz clean

BIN := .venv/bin
STAMP := .venv/.finrl-pod-installed
# The first of these that runs and is 3.11 to 3.13 makes the environment; PYTHON=... goes before them.
PYTHON ?=
# Options of `finrl-pod demo` and of pytest: make demo ARGS=--quick, make test ARGS="-k doctor"
ARGS ?=

# Both names: pip before 25.3 knows only the first for what it installs to build with.
$(STAMP): export PIP_CONSTRAINT := constraints.txt
$(STAMP): export PIP_BUILD_CONSTRAINT := constraints.txt
$(STAMP): export PIP_DISABLE_PIP_VERSION_CHECK := 1

DEPLOY := .venv-deploy
DOCS := .venv-docs
RELEASE := .venv-release

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 18

setup: $(STAMP) ## create .venv and install everything, pinned by constraints.txt

# torch goes in first: it is the largest part, and nothing else may pull in another version of it. The tests read files
# alone of two packages, Alpaca's OpenAPI descriptions and prices: their dependencies stay out.
$(STAMP): pyproject.toml constraints.txt
	@for python in "$(PYTHON)" python3.11 python3.12 python3.13 python3; do \
	  if "$$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	  then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "make: needs Python 3.11, 3.12 or 3.13 with its venv module: install one, or name it with PYTHON=..." >&2; exit 2; \
	fi; \
	echo "setting up .venv with $$found (a few minutes, once)" >&2; \
	"$$found" -m venv .venv
	@echo "1 of 3: torch, the largest download" >&2
	$(BIN)/python -m pip install torch
	@echo "2 of 3: finrl_pod and its other packages" >&2
	$(BIN)/python -m pip install --editable '.[sources,indicators,paper,dashboard,s3,ray,dev]'
	@echo "3 of 3: files for tests" >&2
	$(BIN)/python -m pip install --no-deps alpaca-mcp-server universal-portfolios
	@$(BIN)/python -m finrl_pod_app.setup.kernels
	@touch $(STAMP)
	@echo "set up: the program is $(BIN)/finrl-pod; try $(BIN)/finrl-pod doctor, or $(BIN)/finrl-pod --help" >&2

demo: setup ## train a tournament on the sample prices and backtest its champion, 1 to 3 minutes
	$(BIN)/finrl-pod demo $(ARGS)

cluster-demo: setup ## a tournament on two Ray nodes on this machine, one of which is killed in the middle, some minutes
	@$(BIN)/python -m finrl_pod_app.cli.cluster_demo $(ARGS)

paper-demo: setup ## trade a simulated month with the daemon against a fake broker, some minutes
	$(BIN)/finrl-pod paper demo $(ARGS)

dashboard: setup ## see runs, compare them, train and watch paper trading in a browser
	$(BIN)/finrl-pod dashboard $(ARGS)

check: setup ## ruff, mypy strict, import layers and cycles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

screenshots: setup browser ## a picture of every page of the dashboard, wide and narrow, light and dark, in screenshots/
	PYTHONPATH=. $(BIN)/python -m tests.browser.screenshots screenshots $(ARGS)

browser: setup ## the browser that tests drive: Chromium is installed where none is found
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  if command -v "$$name" > /dev/null; then exit 0; fi; \
	done; \
	if ! $(BIN)/playwright install chromium; then \
	  echo "make: no Chromium is here and none could be installed: the browser tests will FAIL until there is one" >&2; \
	fi

# pytest-xdist: one worker more than cores, since tests of processes wait. The tests of a file share what they set up, so they stay
# on one worker. Files run in the order of tests/conftest.py. One torch thread per process: they would compete for the cores.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: check ## check, then the tests that are neither slow nor drive a browser; before every commit
	$(PYTEST) -m "not slow and not browser" --ignore tests/test_layers.py $(ARGS)

test: check browser ## check, then every test
	$(PYTEST) --ignore tests/test_layers.py $(ARGS)

check-deploy: setup ## images, compose file and Kubernetes manifests in deploy/: linters and schemas
	@$(MAKE) --no-print-directory $(DEPLOY)/.installed
	$(DEPLOY)/bin/python deploy/check.py

$(DEPLOY)/.installed: deploy/check-requirements.txt
	$(BIN)/python -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install -qq --requirement deploy/check-requirements.txt
	@touch $@

docs: $(DOCS)/.installed ## the documentation as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "site/index.html"

$(DOCS)/.installed: docs/requirements.txt | setup
	$(BIN)/python -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -qq --requirement docs/requirements.txt
	@touch $@

release: $(RELEASE)/.installed ## wheel, sdist, SBOM, licences, known vulnerabilities and SHA256SUMS, checked, in dist/
	$(RELEASE)/bin/python release/make_release.py

$(RELEASE)/.installed: release/requirements.txt | setup
	$(BIN)/python -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install -qq --requirement release/requirements.txt
	@touch $@

fuzz: setup ## damage files in new ways and read them, some minutes; FUZZ_EXAMPLES=5000
	FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-5000} HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest tests/fuzz $(ARGS)

# The kernels of GPUs with the Triton that torch requires, then with those in TRITON, which go into folders of their own.
ARCH ?= 90
TRITON ?=
ahead-of-time: setup ## compile the GPU kernels, without a GPU; ARCH="80 90 100" TRITON="3.6.0 3.8.0"
	$(BIN)/python -m benchmarks.gpu.ahead_of_time --arch $(ARCH) $(ARGS)
	@for version in $(TRITON); do \
	  echo "Triton $$version" >&2; \
	  $(BIN)/python -m pip install -qq --no-deps --upgrade --target ".venv-triton/$$version" "triton==$$version"; \
	  PYTHONPATH=".venv-triton/$$version" $(BIN)/python -m benchmarks.gpu.ahead_of_time --arch $(ARCH); \
	done

# Each of these has an environment of its own in which the main one's packages come last, so that torch is not installed again.
SIMULATOR := .venv-mujoco-warp
RLLIB := .venv-rllib
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

simulators: $(SIMULATOR)/.installed ## the environment of MuJoCo Warp, for test-simulators

test-simulators: simulators ## a real simulator behind each interface; some minutes
	OMP_NUM_THREADS=1 PYTHONPATH="$$PWD" $(SIMULATOR)/bin/python -m pytest -p no:cacheprovider \
	  -c tests/simulators/simulators.ini --rootdir=. tests/simulators $(ARGS)

rllib: $(RLLIB)/.installed ## the environment of RLlib, for the benchmark against it

$(SIMULATOR)/.installed: PACKAGES := mujoco-warp==4.0.0 warp-lang==1.19.0
$(RLLIB)/.installed: PACKAGES := 'ray[rllib]==2.60.0'
$(SIMULATOR)/.installed $(RLLIB)/.installed: Makefile | setup
	$(BIN)/python -m venv $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" > "$$($(@D)/bin/python $(PURELIB))/main.pth"
	$(@D)/bin/python -m pip install -qq $(PACKAGES)
	@touch $@

# Both keep two cores busy. The last line says what was found; the exit code is 1 when anything is wrong.
soak: setup ## a simulated year of paper trading: among faults and kills, among faults, undisturbed; 10 minutes at most
	PYTHONPATH=. $(BIN)/python tests/soak/run.py "$$(mktemp -d)/soak" --sessions 252 --kills 12 $(ARGS)

soak-short: setup ## the same for some weeks, about a minute
	PYTHONPATH=. $(BIN)/python tests/soak/run.py "$$(mktemp -d)/soak" --sessions 25 --kills 2

clean: ## remove the environment and all caches (never runs/ or stored data)
	rm -rf .venv .venv-triton $(DEPLOY) $(DOCS) $(RELEASE) $(SIMULATOR) $(RLLIB) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
