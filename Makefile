# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
KERNEL := $(wildcard src/undertow/measure/kernels/_native*.[ch])

.PHONY: demo test test-slow test-integrations check install bench-overhead bench-store bench-kernel bench-gpu bench-detection bench-analyze bench-weights bench-ui bench-scale bench-unchanged bench-walk bench-source mutants fuzz kills soak chromium clean

demo: $(INSTALLED)
	$(BIN)/undertow demo

test: check chromium $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# A real browser for the tests of the dashboard, where one can be had.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { test "$$(id -u)" = 0 && \
	  export DEBIAN_FRONTEND=noninteractive && timeout 120 apt-get update -qq && \
	  timeout 300 apt-get install -y -qq chromium >/dev/null; } || \
	  echo "chromium cannot be installed here: the tests in a browser will be skipped"

# What is too heavy for every change. ARGS chooses: make test-slow ARGS="tests/corpus -k dead_relu"
test-slow: $(INSTALLED)
	@echo "Every fault at every severity, every healthy training, ranks that die, a checkpoint of 4 GB, and more:"
	@echo "about a quarter of an hour on two idle cores, and 9 GB of disk for a while. A summary comes at the end."
	$(BIN)/python -m pytest -m slow -n 2 --dist worksteal --durations 10 $(ARGS)

# Every reader on spoiled files, other ones each time, with a limit on memory: make fuzz MINUTES=10
fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz $(or $(MINUTES),10)

# Would the tests notice? Random small changes of the library: make mutants N=60 SEED=7. The first time it records which
# test enters which function, which takes as long as the tests do.
mutants: $(INSTALLED)
	test -e build/mutants.map.gz || $(BIN)/python -m benchmarks.mutants --record --jobs 2
	$(BIN)/python -m benchmarks.mutants --count $(or $(N),60) --seed $(or $(SEED),1) $(ARGS)

# SIGKILL at random moments, and what is left of the runs: make kills N=1000
kills: $(INSTALLED)
	$(BIN)/python -m tests.crash $(or $(N),1000) $(SEED)

# Do memory, files, threads and disk stay where they are? make soak HOURS=0.25
soak: $(INSTALLED)
	$(BIN)/python -m benchmarks.soak --hours $(or $(HOURS),1)

# Also with the heavy packages of other people, which `make test` does without.
test-integrations: $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[integrations]'
	$(BIN)/python -m pytest tests/integrations

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

install: $(INSTALLED)

$(INSTALLED): pyproject.toml setup.py constraints.txt $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,tables,dev]'
	touch $@

bench-overhead: $(INSTALLED)
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.overhead.fine
	$(BIN)/python -m benchmarks.overhead.hooks

bench-store: $(INSTALLED)
	$(BIN)/python -m benchmarks.store

bench-kernel: $(INSTALLED)
	$(BIN)/python -m benchmarks.kernel

bench-gpu: $(INSTALLED)
	$(BIN)/python -m benchmarks.gpu $(ARGS)
	$(BIN)/python -m benchmarks.gpu.regimes

bench-detection: $(INSTALLED)
	$(BIN)/python -m benchmarks.detection $(if $(TIER),--tier $(TIER)) $(ARGS)

bench-weights: $(INSTALLED)
	$(BIN)/python -m benchmarks.weights

bench-analyze: $(INSTALLED)
	$(BIN)/python -m benchmarks.analyze

bench-ui: $(INSTALLED)
	$(BIN)/python -m benchmarks.ui
	$(if $(TRAINSCOPE),$(BIN)/python -m benchmarks.ui.beside --trainscope $(TRAINSCOPE),@echo "with TRAINSCOPE=PYTHON, an interpreter that has trainscope, also beside its dashboard")

bench-walk: $(INSTALLED)
	$(BIN)/python -m benchmarks.walk

# What an x-rayed step costs, the one that gives every operation its line
bench-source: $(INSTALLED)
	$(BIN)/python -m benchmarks.source

bench-scale: $(INSTALLED)
	$(BIN)/python -m benchmarks.scale $(ARGS)

# Does watching change anything? Needs a few GB of other people's packages: make bench-unchanged ARGS="--only 'loops/*'"
bench-unchanged: $(INSTALLED)
	$(BIN)/python -m benchmarks.unchanged $(ARGS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/undertow/measure/kernels/*.so
