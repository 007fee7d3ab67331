# All targets need only python3 with venv; each makes .venv by itself when it is missing or old.

PYTHON ?= python3
BIN = .venv/bin

PYTEST = $(BIN)/python -m pytest
# Modules run at the same time, each with the clusters that its tests share; see tests/conftest.py for the number.
PARALLEL = -n auto --dist loadfile --no-loadscope-reorder

# In the order of the files; with `ORDER=`, in a random one whose seed is printed. Slow tests depend on their order: some
# take down the cluster of their module.
ORDER = -p no:randomly

# Some images set it: each command that a test or a benchmark starts would compile all its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-setup test-slow test-all test-kubernetes faults lint bench weight stories soak wheel release completions docs site picture clean

# BIN=FOLDER uses another environment as it is, in which `pip install -e '.[test]'` has installed all that is needed.
ifeq ($(BIN),.venv/bin)
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@
else
.venv/installed: ;
endif

# The whole story in one command: a cluster comes up, computes pi, is looked at, and goes down again, whatever happens.
# It has its own name, so that it is not one that the user has started.
demo: export TFCLUSTER_CLUSTER = make-demo
demo: .venv/installed
	@$(BIN)/tfcluster status >/dev/null 2>&1; test $$? -eq 3 || \
	{ echo "a cluster $$TFCLUSTER_CLUSTER is up already: $(BIN)/tfcluster down -c $$TFCLUSTER_CLUSTER" >&2; exit 1; }
	mkdir -p build
	sed 's/^name: .*/name: make-demo/' examples/cluster.yaml >build/demo.yaml
	$(BIN)/tfcluster up build/demo.yaml
	$(BIN)/tfcluster run pi --samples 1e7 --gpus 4 && $(BIN)/tfcluster status; \
	code=$$?; $(BIN)/tfcluster down && exit $$code

# A minute or one and a half: what to run before every commit.
check: lint
	$(PYTEST) $(PARALLEL) -m "not integration and not slow"

# The programs that some tests need, which are skipped without them: on Debian, as root.
test-setup:
	@packages=$$($(PYTHON) -m tests.requirements) && \
	if ! dpkg -s $$packages >/dev/null 2>&1; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$packages; \
	fi

# Every capability once; meant to take at most five minutes on two cores.
test: .venv/installed
	$(PYTEST) $(PARALLEL) $(ORDER) -m "not slow"

# Faults at random, faults at every step, many repetitions, many hosts, and variants of what `make test` covers.
test-slow: .venv/installed
	$(PYTEST) $(PARALLEL) -p no:randomly -m slow

test-all: test test-slow faults

# Stories on the Kubernetes of $KUBECONFIG, in a namespace of their own; IMAGE=... is the image of the pods.
test-kubernetes: .venv/installed
	$(PYTEST) -p no:randomly tests/real_kubernetes.py

# Shows that the tests find deliberate faults of the product, one for each promise; NAMES='a b' chooses some.
faults: .venv/installed
	$(BIN)/python -m tests.faults $(NAMES)

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture
	$(BIN)/vulture tests tfcluster docs

BENCHMARKS = cluster_start status first_run run_nothing run_pi launch sweep pi mean linear restart journal idle held_agent dashboard hosts many_hosts many_tasks private forwarding

# All are run; it fails when one did not reach its target.
bench: .venv/installed
	missed=; for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || missed="$$missed $$name"; done; \
	test -z "$$missed" || { echo "not reached:$$missed"; exit 1; }

# How much code there is, and how many functions the stories of docs/architecture.md enter; LIST=--list names them.
weight: .venv/installed
	$(BIN)/python benchmarks/weight.py $(FOLDER)

stories: .venv/installed
	$(BIN)/python benchmarks/stories.py $(LIST)

# 300 random faults and as much of the rest, which takes half an hour; FAULTS=1000 makes it more.
soak: FAULTS = 300
soak: .venv/installed
	$(BIN)/python benchmarks/soak.py $(FAULTS)

# What a release consists of: the wheel, and the source that it is built from.
DIST = dist
wheel: .venv/installed
	$(BIN)/python docs/make_man.py
	$(BIN)/python -m hatchling build --directory $(DIST)

# The same, checked and tried.
release: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[release]'
	.ci/release $(abspath $(DIST))

completions: .venv/installed
	$(BIN)/tfcluster completion bash > completions/tfcluster.bash
	$(BIN)/tfcluster completion zsh > completions/_tfcluster
	$(BIN)/tfcluster completion fish > completions/tfcluster.fish

# The references of the spec, of the commands and of the events of a run, the limits, and the JSON schema of the spec.
docs: .venv/installed
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_limits.py
	$(BIN)/python docs/make_schema.py

# The documentation as a website, in build/site; a warning, such as a link that leads nowhere, is an error.
site: .venv/installed-docs
	$(BIN)/python docs/make_site.py

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

# The pictures of the terminal and, with Debian's chromium and chromium-driver, of the page.
picture: .venv/installed
	$(BIN)/python docs/make_picture.py
	$(BIN)/python docs/make_dashboard_pictures.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .import_linter_cache .ruff_cache .hypothesis
