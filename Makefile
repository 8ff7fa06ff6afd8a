# Every target runs in .venv, which is made from pyproject.toml and CONSTRAINTS when they change.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
FUZZ_SECONDS ?= 300
COMPAT ?= 2.11.0-3.6.0 2.13.0-3.7.1 2.14.1-3.8.0
CONSTRAINTS ?= constraints.txt
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz emulate compat examples check docs bench-plots clean

help:   ## list the targets
	@sed -nE 's/^([a-z-]+): .*## /make \1\t/p' Makefile

demo: $(STAMP)   ## run the demo, on the GPU or in Triton's interpreter, and write build/demo.html
	$(RUN) examples.demo

# Triton chooses its interpreter when it is imported, so the tests need a process for each.
test: check   ## run the checks and the first tier of the tests: no GPU, under eight minutes on two cores
	TRITON_INTERPRET=1 $(RUN) pytest -n logical --most-seconds 3 tests/unit tests/interpret tests/codegen tests/features
	TRITON_INTERPRET=0 $(RUN) pytest -n logical --most-seconds 3 tests/ptx/test_static.py

# A round is finished, whenever the time is over, so that what fails is shrunk and said.
fuzz: $(STAMP)   ## draw anew for the property tests, until one fails or FUZZ_SECONDS (300) are over
	end=$$(($$(date +%s) + $(FUZZ_SECONDS))); while [ $$(date +%s) -lt $$end ]; do \
		TRITON_INTERPRET=1 $(RUN) pytest -qx -n logical --every -m hypothesis --hypothesis-profile=fuzz tests/unit tests/interpret \
		|| exit 1; done

test-all: check   ## run every test for every target, and the emulated GPU: several hours on two cores
	TRITON_INTERPRET=1 $(RUN) pytest -n logical --every tests/unit tests/interpret tests/codegen tests/features tests/mutations
	TRITON_INTERPRET=0 $(RUN) pytest -n logical --every tests/ptx tests/gpu tests/emulator
	$(MAKE) emulate

emulate: $(STAMP)   ## run the tests of ops and losses, and those for GPUs, on an emulated one: about an hour
	TRITON_INTERPRET=0 $(RUN) pytest -n logical --emulate --cases 9 tests/unit/test_ops.py tests/interpret tests/gpu

# Each has an environment of its own, in build/compat. Of PyPI's builds of torch for x86-64 all but a few bring CUDA's
# libraries, 5 GB.
compat: $(COMPAT:%=build/compat/%/.installed)   ## test some losses with the versions of torch and Triton in COMPAT
	for each in $(COMPAT); do echo "torch-triton $$each"; \
		TRITON_INTERPRET=1 build/compat/$$each/bin/python -m pytest -q tests/unit/test_compat.py tests/unit/test_smoke.py \
		&& TRITON_INTERPRET=0 build/compat/$$each/bin/python -m pytest -q tests/unit/test_compat.py || exit 1; done

build/compat/%/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q -e ".[test]" "numpy<2.4" \
		torch==$(word 1,$(subst -, ,$*)) triton==$(word 2,$(subst -, ,$*))
	touch $@

# 2.5 GB where pip finds a torch for CPUs, and twice as much with CUDA's libraries.
examples: build/examples/.installed   ## run the examples with public packages, in an environment of its own
	build/examples/bin/python -m pytest --every tests/examples

build/examples/.installed: pyproject.toml constraints.txt examples/constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q -c constraints.txt -c examples/constraints.txt -e ".[test,examples]"
	touch $@

check: $(STAMP)   ## run the linter, the formatter's check and the type checker
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy

docs: $(VENV)/.docs   ## check the outputs that the pages show, but for the demo's table, and build the site, build/site
	$(RUN) examples.refresh_docs --check --skip demo
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

$(VENV)/.docs: $(STAMP)
	$(RUN) pip install -c $(CONSTRAINTS) -e ".[docs]"
	touch $@

bench-plots: $(STAMP)   ## draw docs/figures/*.svg from bench/results/*.csv
	$(RUN) bench.plots

clean:   ## remove .venv, builds and caches
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install -c $(CONSTRAINTS) -e ".[test,demo,dev]"
	touch $@
