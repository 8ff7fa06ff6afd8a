# Every target runs in .venv, which is made from pyproject.toml and constraints.txt when they change.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
FUZZ_SECONDS ?= 300
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz emulate check bench-plots clean

help:   ## list the targets
	@sed -nE 's/^([a-z-]+): .*## /make \1\t/p' Makefile

demo: $(STAMP)   ## run the demo, on the GPU or in Triton's interpreter, and write build/demo.html
	$(RUN) examples.demo

# Triton chooses its interpreter when it is imported, so the tests need a process for each.
test: check   ## run the checks and all tests; GPU tests are skipped where there is no GPU
	TRITON_INTERPRET=1 $(RUN) pytest -n logical tests/unit tests/interpret tests/codegen
	TRITON_INTERPRET=0 $(RUN) pytest -n logical tests/ptx tests/gpu tests/emulator
	TRITON_INTERPRET=0 $(RUN) pytest -n logical --emulate tests/interpret/test_half_casts.py tests/interpret/test_strided.py \
		tests/interpret/test_contrastive.py::test_sums_over_many \
		tests/interpret/test_contrastive.py::test_columns_of_several_programs

# A round is finished, whenever the time is over, so that what fails is shrunk and said.
fuzz: $(STAMP)   ## draw anew for the property tests, until one fails or FUZZ_SECONDS (300) are over
	end=$$(($$(date +%s) + $(FUZZ_SECONDS))); while [ $$(date +%s) -lt $$end ]; do \
		TRITON_INTERPRET=1 $(RUN) pytest -qx -n logical -m hypothesis --hypothesis-profile=fuzz tests/unit tests/interpret \
		|| exit 1; done

emulate: $(STAMP)   ## run the tests of ops and losses, and those for GPUs, on an emulated one: about an hour
	TRITON_INTERPRET=0 $(RUN) pytest -n logical --emulate tests/unit/test_ops.py tests/interpret tests/gpu

check: $(STAMP)   ## run the linter, the formatter's check and the type checker
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy

bench-plots: $(STAMP)   ## draw what bench/run.py has measured, as bench/results/*.svg
	$(RUN) bench.plots

clean:   ## remove .venv, builds and caches
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install -c constraints.txt -e ".[test,demo,dev]"
	touch $@
