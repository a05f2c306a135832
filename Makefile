# Everything is built below .venv and .tools; nothing is installed on the machine.

PYTHON ?= python3
# For example: make test PYTEST_ARGS='-k reload -x'
PYTEST_ARGS ?=
# For example: make bench BENCH_ARGS='--resources 1,100 --runs 1'
BENCH_ARGS ?=
# How long test-slow fuzzes; 3600 for a long look.
SECONDS ?= 5
# Of the generated inputs: drawn for each run; `make test SEED=N` repeats one.
SEED := $(or $(SEED),$(shell shuf -i 1-999999999 -n 1))

BIN := .venv/bin
PROTO_BIN := .tools/proto-venv/bin
PIP := -m pip --disable-pip-version-check --quiet

# The kubelets of the tests, by minor version; tests/support/go/kubelet has a module file for each. 1.32 can be
# added; it cleans the plugin directory of all files.
KUBELET := 1.37
OTHER_KUBELETS := 1.36
BUILD_KUBELETS = $(BIN)/python -m tests.support.kubelet_build --out .tools
# In the order of the collection: tests that need a program that is built come last.
PYTEST = $(BIN)/python -m pytest --hypothesis-seed=$(SEED) -n 4 --dist load --maxschedchunk 4

PROTOS := $(sort $(shell find proto -name '*.proto'))
# Not part of .venv: the generator is held at an older protobuf than the one we run on.
PROTO_PINS := $(shell grep -E '^(grpcio-tools|mypy-protobuf)==' constraints.txt)

UV_PIN := $(shell grep -E '^uv==' constraints.txt)
LOCK = .tools/uv-venv/bin/uv pip compile --quiet --no-config --generate-hashes --no-annotate --only-binary :all: \
	--python-platform linux --python-version 3.11 --constraint constraints.txt \
	--custom-compile-command 'make generate'

AUDIT_PINS := $(shell grep -E '^(pip_audit|pip-licenses)==' constraints.txt)
# Each permits what we do with them: to publish them in an image, unchanged.
LICENSES := MIT;MIT License;Apache-2.0;Apache-2.0 AND BSD-2-Clause;BSD License;BSD-2-Clause;BSD-3-Clause;3-Clause BSD License;PSF-2.0

# Many containers set it; each of the thousand processes of the tests would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow e2e hardware gpu mutants bench lint format generate .generate-offline audit docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: .venv/.runtime ## Make .venv with devhost, to use it

demo: .venv/.runtime ## Show devhost at work, without a cluster
	@GRPC_VERBOSITY=NONE $(BIN)/python docs/demo.py

# What comes before is quick; pytest's last line closes the output. A kubelet, two Helms and a few
# more are built while the first tests run. Most tests wait for something most of the time, so
# there are more workers than cores.
test: lint ## Check what most changes need (the last tests wait for programs that are built once)
	@kubelet="$$($(BUILD_KUBELETS) --later $(KUBELET))" && \
		echo 'to repeat this run: make test SEED=$(SEED)' && \
		DEVHOST_TEST_KUBELET="$$kubelet" \
		$(PYTEST) --build -m 'not slow' $(PYTEST_ARGS)

test-slow: .venv/.stamp ## Check floods, leaks, sizes, storms, the image and older kubelets, and fuzz
	@kubelets="$$($(BUILD_KUBELETS) $(OTHER_KUBELETS))" && \
		{ $(BIN)/python -m tests.deploy.build || echo 'no image can be built here'; } && \
		echo 'to repeat this run: make test-slow SEED=$(SEED)' && \
		DEVHOST_TEST_KUBELET="$$(echo $$kubelets | tr ' ' :)" \
		DEVHOST_FUZZ_SECONDS=$(SECONDS) \
		$(PYTEST) -m 'slow or real_kubelet' $(PYTEST_ARGS)

# Builds everything first, because pytest hides the progress.
e2e: .venv/.stamp ## Test chart and image on a real one-node cluster, as root (the first run builds it: 15 minutes)
	@$(BIN)/python -m tests.e2e.programs
	@$(BIN)/python -m tools.helm
	@$(BIN)/python -m tests.deploy.build
	@$(BIN)/python -m pytest -v -rs tests/e2e $(PYTEST_ARGS)

hardware: .venv/.stamp ## Test USB sticks that come and go on an emulated computer, as root (5 minutes and more)
	@kubelets="$$($(BUILD_KUBELETS) $(KUBELET))" && \
		DEVHOST_TEST_KUBELET="$$kubelets" $(BIN)/python -m tests.e2e.emulated $(PYTEST_ARGS)

gpu: .venv/.stamp ## Test containers that compute on a GPU of NVIDIA's driver, as root, where there is one
	@kubelets="$$($(BUILD_KUBELETS) $(KUBELET))" && \
		DEVHOST_TEST_KUBELET="$$kubelets" $(BIN)/python -m pytest -v -rs tests/e2e/test_gpu.py $(PYTEST_ARGS)

mutants: .venv/.stamp ## Plant the defects of tools/mutants.yaml one by one: the tests have to notice (10 minutes)
	@$(BIN)/python -m tools.mutants $(WORDS)

bench: .venv/.stamp ## Measure, beside a bare plugin in Python and one in Go
	@$(BIN)/python -m bench $(BENCH_ARGS)

lint: .venv/.stamp ## Check style, formatting, words, who may import whom, and the types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m tools.words
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

format: .venv/.stamp ## Format the code and mend what ruff can
	@$(BIN)/ruff check --fix --exit-zero
	@$(BIN)/ruff format

# Both take the names from what the image installs. Not part of the tests: pip-audit asks PyPI.
audit: .venv/.stamp ## Ask for known vulnerabilities and the licences of what the image installs
	@$(PYTHON) -m venv .tools/audit-venv
	@.tools/audit-venv/bin/python $(PIP) install $(AUDIT_PINS)
	@.tools/audit-venv/bin/pip-licenses --python=$(BIN)/python --allow-only='$(LICENSES)' \
		--packages $$(grep -oE '^[^ =]+==' tools/image/requirements.txt | tr -d =)
	@.tools/audit-venv/bin/pip-audit --strict --require-hashes --disable-pip -r tools/image/requirements.txt

# CI fails if this changes anything. The requirements have the hashes of all architectures.
generate: .generate-offline ## Write all files that are made from others: schemas, reference, manifest, API, requirements
	@$(PYTHON) -m venv .tools/uv-venv
	@.tools/uv-venv/bin/python $(PIP) install $(UV_PIN)
	@$(LOCK) pyproject.toml --output-file tools/image/requirements.txt
	@$(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" \
		| $(LOCK) - --output-file tools/image/build-requirements.txt

# What needs no network, once the tools are there; .ci/run checks these.
.generate-offline: .venv/.stamp $(PROTO_BIN)/.stamp
	@PATH="$(CURDIR)/$(PROTO_BIN):$$PATH" $(PROTO_BIN)/python -m grpc_tools.protoc -I proto \
		--python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. $(PROTOS)
	@$(BIN)/devhost schema > config/.schema.json.new && mv config/.schema.json.new config/schema.json
	@$(BIN)/python -m tools.chart
	@$(BIN)/python -m tools.helm >/dev/null && $(BIN)/python -m tools.manifest
	@$(BIN)/python -m tools.examples
	@$(BIN)/python -m tools.site.reference

docs: .venv/.docs ## Build the documentation below .tools/site; any broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'open .tools/site/index.html, or: $(BIN)/mkdocs serve'

clean: ## Remove all that was made, but for what was built in .tools
	@rm -rf .venv .tools/proto-venv .tools/uv-venv .tools/audit-venv build dist
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.tools/*' -prune -exec rm -rf {} +

# devhost alone, which is all that its users need.
.venv/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("devhost needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another one: make PYTHON=python3.11" % v)'
	@echo 'setting up .venv: devhost and its dependencies (once; a minute or so)'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) install -c constraints.txt -e .
	@touch $@

.venv/.stamp: .venv/.runtime
	@echo 'setting up .venv: what the tests need (once; a minute or so)'
	@$(BIN)/python $(PIP) install -c constraints.txt -e '.[test]'
	@touch $@

.venv/.docs: .venv/.runtime
	@echo 'setting up .venv: what builds the documentation'
	@$(BIN)/python $(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

$(PROTO_BIN)/.stamp: constraints.txt
	@echo 'setting up .tools/proto-venv'
	@$(PYTHON) -m venv .tools/proto-venv
	@$(PROTO_BIN)/python $(PIP) install $(PROTO_PINS)
	@touch $@
