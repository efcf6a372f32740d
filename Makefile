# Development tasks. `make` without a target lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python that works and is recent enough. pyenv's shims may exist without working.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
  $$python -c '$(IS_NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
TORCH ?= torch==2.13.0# without an NVIDIA driver, from the index of CPU builds at TORCH_CPU_INDEX=URL if that is set
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(shell cat pyproject.toml Makefile | cksum | cut -d' ' -f1)-$(shell echo '$(TORCH)' | cksum | cut -d' ' -f1)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Where Debian's python3-venv is missing, `-m venv` leaves an environment without pip behind.
define NEW_VENV
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
  test ! -e '$(1)' || kept=yes; \
  '$(PYTHON)' -m venv '$(1)' || { \
    test -n "$$kept" || rm -rf '$(1)'; \
    echo 'error: cannot create $(1) with $(PYTHON)'; \
    echo 'hint: as root on Debian or Ubuntu: apt install python3-venv; then run make again'; exit 1; }; }
endef

.PHONY: setup
setup: $(STAMP) ## Make .venv with clusterctl in it, for training and development (PYTHON=, TORCH=, TORCH_CPU_INDEX= choose)

$(STAMP):
	@'$(PYTHON)' -c '$(IS_NEW_ENOUGH)' 2>/dev/null || { \
	  echo 'error: no Python 3.11 or later: $(or $(PYTHON),none on PATH)'; echo 'hint: make setup PYTHON=/path/to/python3'; exit 1; }
	$(call NEW_VENV,$(VENV))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.3' # older ones download to resolve
	options=$$(PYTHONPATH=src $(BIN)/python -m clusterctl.launcher.containers.wheels '$(TORCH)') && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$options '$(TORCH)' --editable '.[train,accelerate,cluster,dashboard,mcp,tensorboard,dev]'
	@rm -f $(VENV)/.ready-*; touch $@

.PHONY: run
run: setup ## Train GraphSAGE on Cora, 2 nodes x 2 tasks, on this machine
	$(BIN)/clusterctl submit cora --cluster local --follow

.PHONY: packages
packages: # Slurm, sshd and other programs for the tests, if root can install them
	@tests/install.sh slurm images sshd browser

.PHONY: container
container: setup ## Build the image into a .sqsh (GPU=1, BASE=, OUTPUT=, CONTAINER_ENGINE= choose)
	@$(BIN)/clusterctl image build $(if $(GPU),--gpu) $(if $(BASE),--base '$(BASE)') $(if $(OUTPUT),--output '$(OUTPUT)') \
	  $(if $(CONTAINER_ENGINE),--engine '$(CONTAINER_ENGINE)')

WORKERS ?= 6# for the tests, which spend half of their time waiting
unexport PYTHONDONTWRITEBYTECODE # the tests run the command line thousands of times
.PHONY: test
test: setup packages ## Run the tests, style and types too (about 8 minutes on two idle cores)
	$(BIN)/python -m pytest -m 'not long and not faults' -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20

.PHONY: diagnose-corpus
diagnose-corpus: setup ## Diagnose the recorded failures in tests/diagnosis/corpus, and compare with their true causes
	@cd tests && ../$(BIN)/python -m support.failures

.PHONY: compare-scripts
compare-scripts: setup ## Run all batch scripts of the corpus by sbatch and by clusterctl, on a real Slurm and without, and compare what they see
	$(BIN)/python -m pytest -n 2 tests/end_to_end/test_compared_scripts.py

RECIPES := .venv-recipes
RECIPE_PACKAGES := lightning==2.6.6 accelerate==1.15.0 mpi4py==4.1.2 mpich==5.0.2 optuna==5.0.0 \
  pytorch-ignite==0.5.5 debugpy==1.8.22 jupyterlab==4.6.6 ray==2.60.0
$(RECIPES)/.ready: pyproject.toml Makefile
	$(call NEW_VENV,$(RECIPES))
	$(RECIPES)/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' $(RECIPE_PACKAGES) \
	  --editable '.[train,tensorboard]'
	@touch $@

DEEPSPEED := .venv-deepspeed
$(DEEPSPEED)/.ready: pyproject.toml Makefile | $(STAMP)
	$(call NEW_VENV,$(DEEPSPEED))
	@realpath $(VENV)/lib/python*/site-packages >"$$(echo $(DEEPSPEED)/lib/python*/site-packages)/of-setup.pth" # its torch
	$(DEEPSPEED)/bin/python -m pip install --quiet --disable-pip-version-check deepspeed==0.19.8
	@touch $@

TRACKERS := .venv-trackers
TRACKER_PACKAGES := tensorboard==2.21.0 wandb==0.31.0 mlflow==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1 \
  pytest hypothesis
$(TRACKERS)/.ready: pyproject.toml Makefile
	$(call NEW_VENV,$(TRACKERS))
	$(TRACKERS)/bin/python -m pip install --quiet --disable-pip-version-check $(TRACKER_PACKAGES) --editable .
	@touch $@

SITE := .venv-site
$(SITE)/.ready: pyproject.toml Makefile
	$(call NEW_VENV,$(SITE))
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[site]'
	@touch $@

.PHONY: test-long
test-long: setup packages $(RECIPES)/.ready $(DEEPSPEED)/.ready $(TRACKERS)/.ready $(SITE)/.ready ## Run what `make test` leaves out, and properties with more examples (under 90 minutes)
	@tests/install.sh docker shells allocators
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[notebook]' # a kernel, for the example
	$(TRACKERS)/bin/python -m pytest tests/trackers/test_libraries.py
	$(BIN)/python -m pytest -m '(long or hypothesis) and not faults and not matrix' --hypothesis-profile=thorough -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test-matrix
test-matrix: setup packages $(RECIPES)/.ready $(DEEPSPEED)/.ready ## Run the long scenarios on the emulator and through a host
	@tests/install.sh docker shells allocators
	$(BIN)/python -m pytest -m 'matrix and not faults' -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test-faults
test-faults: setup packages ## Every fault on every training, and 19,300 damaged run directories
	$(BIN)/python -m pytest -m faults -n 2

SYSTEMS ?= plain trixie sid minimum
.PHONY: test-portability
test-portability: ## Run what touches Slurm on newer Debians, and with the oldest packages (root; SYSTEMS= chooses)
	@for system in $(SYSTEMS); do tests/portability.sh $$system || exit 1; done

.PHONY: lint
lint: setup ## Check style, types and shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/shellcheck --shell=bash .ci/run .ci/release tests/*.sh src/clusterctl/launcher/sandbox/*.sh src/clusterctl/launcher/cli/completion.bash
	$(BIN)/shellcheck --shell=bash --exclude=SC2034,SC2154 src/clusterctl/launcher/submission/*.sh # their variables are set by the generated part
	$(BIN)/shellcheck --exclude=SC2016,SC2054,SC2154,SC2329 tests/submission/golden/*.sh # complete scripts
	$(BIN)/shellcheck --exclude=SC2016,SC2034,SC2054,SC2154 tests/submission/golden/generated/*.sh # without the fixed parts

.PHONY: format
format: setup ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .

.PHONY: bench
bench: setup ## Measure everything side by side; each line is a ratio
	for program in $$(grep -l "^def main()" $(filter-out %/gpu_check.py,$(wildcard benchmarks/*.py))); do $(BIN)/python $$program || exit 1; done

.PHONY: gpu-check
gpu-check: setup ## On a machine with GPUs: check results and measure, one table (SCALE= of Reddit's graph)
	@$(BIN)/python benchmarks/gpu_check.py $(if $(SCALE),--scale '$(SCALE)')

RIVALS := .venv-rivals
$(RIVALS)/.ready:
	$(call NEW_VENV,$(RIVALS))
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' setuptools wheel ninja \
	  --editable '.[train,accelerate]'
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation torch-scatter torch-sparse
	@touch $@

.PHONY: bench-rivals
bench-rivals: setup $(RIVALS)/.ready ## Measure against PyG's own loaders, which need torch-sparse (15 minutes to build)
	for program in training_step any_model full_graph_evaluation curves pyg_loader; do \
	  $(RIVALS)/bin/python benchmarks/$$program.py || exit 1; done
	$(BIN)/python benchmarks/taobao_step.py --rival-python $(RIVALS)/bin/python

.PHONY: docs
docs: setup ## Write the generated reference and the pictures again, from real runs
	$(BIN)/python docs/generate.py

.PHONY: site
site: $(SITE)/.ready ## Build the documentation site; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet

RELEASE := .venv-release
$(RELEASE)/.ready: Makefile
	$(call NEW_VENV,$(RELEASE))
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0 cyclonedx-bom==7.5.0
	@touch $@

.PHONY: release
release: setup $(RELEASE)/.ready ## Build wheel and sdist in dist/ reproducibly, try both, with checksums and an SBOM
	options=$$(PYTHONPATH=src $(BIN)/python -m clusterctl.launcher.containers.wheels '$(TORCH)') && \
	.ci/release "$(CURDIR)/$(RELEASE)/bin/python" $$options '$(TORCH)'

.PHONY: clean
clean: ## Remove what make made
	rm -rf $(VENV) $(RIVALS) $(RECIPES) $(TRACKERS) $(SITE) $(RELEASE) site .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
