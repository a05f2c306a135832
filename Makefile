# Everything is built below .venv and .tools; nothing is installed on the machine.

PYTHON ?= python3
# For example: make test PYTEST_ARGS='-k reload -x'
PYTEST_ARGS ?=
# For example: make bench BENCH_ARGS='--resources 1,100 --runs 1'
BENCH_ARGS ?=
# Of soak and fuzz; 120 for a short look.
SECONDS ?= 3600
# How long the fuzzing takes that is part of the tests.
FUZZ_SECONDS ?= 5
# Of the generated inputs: drawn for each run; `make test SEED=N` repeats one.
SEED := $(or $(SEED),$(shell shuf -i 1-999999999 -n 1))

BIN := .venv/bin
PROTO_BIN := .tools/proto-venv/bin
PIP := -m pip --disable-pip-version-check --quiet

# The kubelets of the tests, by minor version; tests/kubelet has a module file for each.
KUBELETS := 1.36 1.37
# Also tested, but not every time: it cleans the plugin directory of all files.
OLD_KUBELETS := 1.32
BUILD_KUBELETS = $(BIN)/python tests/kubelet/build.py --out .tools

PROTOS := $(sort $(shell find proto -name '*.proto'))
# Not part of .venv: the generator is held at an older protobuf than the one we run on.
PROTO_PINS := $(shell grep -E '^(grpcio-tools|mypy-protobuf)==' constraints.txt)

UV_PIN := $(shell grep -E '^uv==' constraints.txt)
LOCK = .tools/uv-venv/bin/uv pip compile --quiet --no-config --generate-hashes --no-annotate --only-binary :all: \
	--python-platform linux --python-version 3.11 --constraint constraints.txt \
	--custom-compile-command 'make requirements'

AUDIT_PINS := $(shell grep -E '^(pip_audit|pip-licenses)==' constraints.txt)
# Each permits what we do with them: to publish them in an image, unchanged.
LICENSES := MIT;MIT License;Apache-2.0;Apache-2.0 AND BSD-2-Clause;BSD License;BSD-2-Clause;BSD-3-Clause;3-Clause BSD License;PSF-2.0

# Many containers set it; each of the thousand processes of the tests would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-kubelets e2e hardware soak fuzz bench screenshots lint type format kubelet chart-schema manifest figures image audit requirements proto schema reference docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: .venv/.stamp ## Make .venv with devhost and what its tests need

demo: .venv/.runtime ## Show devhost at work, without a cluster
	@GRPC_VERBOSITY=NONE $(BIN)/python docs/demo.py

# The prerequisites are quick and come first; pytest's last line closes the output. Most tests
# wait for something most of the time, so there are more workers than cores.
test: lint type $(PROTO_BIN)/.stamp ## Check everything (the first time builds two kubelets and two Helms: 12 to 25 minutes)
	@kubelets="$$($(BUILD_KUBELETS) $(KUBELETS))" && \
		$(BIN)/python -m tests.support.cdiverify >/dev/null && \
		$(BIN)/python -m tests.support.promql >/dev/null && \
		$(BIN)/python -m tests.support.actionlint >/dev/null && \
		$(BIN)/python -m tests.chart.helm >/dev/null && \
		{ $(BIN)/python -m tests.image.build || echo 'no image can be built here'; } && \
		echo 'to repeat this run: make test SEED=$(SEED)' && \
		DEVHOST_TEST_KUBELET="$$(echo $$kubelets | tr ' ' :)" \
		DEVHOST_TEST_PROTOC="$(CURDIR)/$(PROTO_BIN)/python" \
		DEVHOST_FUZZ_SECONDS=$(FUZZ_SECONDS) \
		$(BIN)/python -m pytest --hypothesis-seed=$(SEED) -n 4 --dist worksteal $(PYTEST_ARGS)

test-kubelets: setup ## Run the tests that take any kubelet on all real ones, old ones too
	@kubelets="$$($(BUILD_KUBELETS) $(OLD_KUBELETS) $(KUBELETS))" && \
		DEVHOST_TEST_KUBELET="$$(echo $$kubelets | tr ' ' :)" \
		$(BIN)/python -m pytest -m real_kubelet $(PYTEST_ARGS)

# Builds everything first, because pytest hides the progress. If that fails, the tests are skipped
# with the reason.
e2e: setup ## Test chart and image on a real one-node cluster, as root (the first run builds it: 15 minutes)
	@$(BIN)/python -m tests.e2e.programs && $(BIN)/python -m tests.chart.helm \
		&& $(BIN)/python -m tests.image.build || true
	@$(BIN)/python -m pytest -v -rs tests/e2e $(PYTEST_ARGS)

hardware: setup ## Test USB sticks that come and go on an emulated computer, as root (5 minutes and more)
	@kubelets="$$($(BUILD_KUBELETS) $(lastword $(KUBELETS)))" && \
		DEVHOST_TEST_KUBELET="$$kubelets" $(BIN)/python -m tests.emulated $(PYTEST_ARGS)

soak: setup ## A storm of everything on the real process: make soak SECONDS=3600
	@kubelets="$$($(BUILD_KUBELETS) $(KUBELETS))" && \
		DEVHOST_TEST_KUBELET="$$(echo $$kubelets | tr ' ' :)" \
		$(BIN)/python -m tests.soak --seconds $(SECONDS)

fuzz: setup ## Fuzz all that reads what others write, for SECONDS in all
	@DEVHOST_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest -s --hypothesis-seed=$(SEED) tests/fuzz/test_any_*.py

bench: setup ## Measure, beside a bare plugin in Python and one in Go
	@$(BIN)/python -m bench $(BENCH_ARGS)

# The picture for the README is of a real run; the others are to be looked at.
screenshots: setup ## Check the status page in a browser, and write docs/images/status.png and build/pictures
	@$(BIN)/python $(PIP) install -c constraints.txt -e '.[test,browser]'
	@$(BIN)/python -m tests.support.browser >/dev/null
	@mkdir -p build/pictures docs/images
	@DEVHOST_TEST_PICTURES=build/pictures $(BIN)/python -m pytest tests/observe/test_page_browser.py
	@cp build/pictures/status.png docs/images/

lint: setup ## Check style, formatting and who may import whom
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-logo

type: setup ## Check the types
	@$(BIN)/mypy

format: setup ## Format the code and mend what ruff can
	@$(BIN)/ruff check --fix --exit-zero
	@$(BIN)/ruff format

kubelet: setup ## Build the kubelets of the tests and print their paths (8 to 20 minutes the first time)
	@$(BUILD_KUBELETS) $(KUBELETS)

chart-schema: setup ## Write the chart's values.schema.json and its README's table of values
	@$(BIN)/python -m deploy.helm.generate

manifest: chart-schema ## Write deploy/kubernetes/devhost.yaml from the chart (builds Helm the first time)
	@$(BIN)/python -m tests.chart.helm >/dev/null
	@$(BIN)/python -m tests.chart.manifest

figures: setup ## Measure the memory of the image in a pod, as root
	@$(BIN)/python -m tests.image.figures

image: setup ## Build the image without a registry, below .tools/image
	@$(BIN)/python -m tests.image.build

# Both take the names from what the image installs. Not part of the tests: pip-audit asks PyPI.
audit: setup ## Ask for known vulnerabilities and the licences of what the image installs
	@$(PYTHON) -m venv .tools/audit-venv
	@.tools/audit-venv/bin/python $(PIP) install $(AUDIT_PINS)
	@.tools/audit-venv/bin/pip-licenses --python=$(BIN)/python --allow-only='$(LICENSES)' \
		--packages $$(grep -oE '^[^ =]+==' deploy/image/requirements.txt | tr -d =)
	@.tools/audit-venv/bin/pip-audit --strict --require-hashes --disable-pip -r deploy/image/requirements.txt

# For all architectures: the hashes are those of all wheels of a version.
requirements: ## Write the requirements of the image, with hashes, for the versions in constraints.txt
	@$(PYTHON) -m venv .tools/uv-venv
	@.tools/uv-venv/bin/python $(PIP) install $(UV_PIN)
	@$(LOCK) pyproject.toml --output-file deploy/image/requirements.txt
	@$(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" \
		| $(LOCK) - --output-file deploy/image/build-requirements.txt

proto: $(PROTO_BIN)/.stamp ## Generate devhost/api from proto/
	@PATH="$(CURDIR)/$(PROTO_BIN):$$PATH" $(PROTO_BIN)/python -m grpc_tools.protoc -I proto \
		--python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. $(PROTOS)

schema: setup ## Write the configuration's JSON Schema to config/schema.json
	@mkdir -p config
	@$(BIN)/devhost schema > config/.schema.json.new || { rm -f config/.schema.json.new; exit 1; }
	@mv config/.schema.json.new config/schema.json

reference: setup ## Write docs/reference from the model and the commands
	@$(BIN)/python -m deploy.site.reference

docs: .venv/.docs ## Build the documentation below .tools/site; any broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'open .tools/site/index.html, or: $(BIN)/mkdocs serve'

clean: ## Remove all that was made, but for what was built in .tools
	@rm -rf .venv .tools/proto-venv .tools/uv-venv .tools/audit-venv build dist
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.tools/*' -prune -exec rm -rf {} +

# devhost alone, which is all that a demonstration needs; pip shows its progress.
.venv/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("devhost needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another one: make PYTHON=python3.11" % v)'
	@echo 'setting up .venv: devhost and its dependencies'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt -e .
	@touch $@

.venv/.stamp: .venv/.runtime
	@echo 'setting up .venv: what the tests need'
	@$(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt -e '.[test]'
	@touch $@

.venv/.docs: .venv/.stamp
	@echo 'setting up .venv: what builds the documentation'
	@$(BIN)/python $(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

$(PROTO_BIN)/.stamp: constraints.txt
	@echo 'setting up .tools/proto-venv'
	@$(PYTHON) -m venv .tools/proto-venv
	@$(PROTO_BIN)/python $(PIP) install $(PROTO_PINS)
	@touch $@
