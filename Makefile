PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-unit test-contract test-integration check chaos protos install clean

install: $(STAMP)

# torch comes from the constraints file, so that pip takes the CPU build it has instead of a CUDA one.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/gpt/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest tests/unit tests/contract tests/integration

test-unit test-contract test-integration: test-%: $(STAMP)
	$(BIN)/python -m pytest tests/$*

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(STAMP)
	$(BIN)/python -m pytest tests/chaos --timeout 3600

protos: $(STAMP)
	$(BIN)/python protos/generate.py

clean:
	rm -rf $(VENV)
