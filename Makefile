# Two commands do everything: `make run` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup engines run test test-slow test-engines check base bench bench-gpu bench-tune accuracy matrix picture clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt hatch_build.py src/ergometer/sensors/beat.c src/ergometer/run/_handover.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,mnn,litert,tinygrad,onnxruntime,openvino,ncnn,nvidia,data,atari,onnx,dev]'
	command -v clang > /dev/null || { apt-get update -qq && apt-get install -y -qq clang; } || echo "tinygrad needs clang: install it"
	ls /etc/OpenCL/vendors/*.icd > /dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq ocl-icd-libopencl1 pocl-opencl-icd; } || echo "tinygrad on OpenCL needs a driver, such as pocl-opencl-icd: install it"
	command -v chromium chromium-browser google-chrome > /dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || echo "the tests of pages need Chromium: install it"
	touch $(STAMP)

run: setup
	$(BIN)/ergo run lenet mobilenet_v2 --batch 4
	$(BIN)/ergo show last --phases
	$(BIN)/ergo show last --layers --top 12
	$(BIN)/ergo report last -o report.html && echo "report.html shows it as a page"

# What computes uses both cores, a process on each; what measures needs the machine to itself.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m 'not slow and not environments and not alone'
	$(BIN)/pytest --durations 10 -m 'not slow and not environments and alone'

# Every network of the suite through `ergo run`, and the largest at their full size: some minutes.
test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -m 'slow and not alone'
	$(BIN)/pytest -m 'slow and alone'

check: setup
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) base device-mnn device-litert
	$(MAKE) test

# An environment of its own for an engine whose packages are large or exclude others: make engine-ort
ENGINES := tensorflow ort

.SECONDARY:
$(VENV)/engines/%/.ready: pyproject.toml constraints.txt | $(STAMP)
	$(PYTHON) -m venv $(VENV)/engines/$*
	$(VENV)/engines/$*/bin/pip install --quiet --disable-pip-version-check $(if $(filter ort,$*),,-c constraints.txt) -e '.[$*]'
	touch $@

engine-%: $(VENV)/engines/%/.ready
	@echo "$* has its own environment"

engines: $(addprefix engine-,$(ENGINES))

# The base install, without a framework, must do its part on a device that has nothing else.
base:
	rm -rf .venv-base
	$(PYTHON) -m venv .venv-base
	.venv-base/bin/pip install --quiet --disable-pip-version-check -c constraints.txt .
	ERGO_HOME=.venv-base/home sh tests/base_install.sh .venv-base/bin/ergo
	du -sm .venv-base/lib | awk '{ print "base install: " $$1 " MB"; exit $$1 > 200 }'

# A device that has one engine and no torch trains a network that was made ready elsewhere.
device-%: setup
	rm -rf .venv-device-$*
	$(PYTHON) -m venv .venv-device-$*
	.venv-device-$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt '.[$*]'
	ERGO_HOME=.venv-device-$*/made $(BIN)/ergo bundle lenet --engine $* --batch 2,16 -o .venv-device-$*/lenet.ergo
	ERGO_HOME=.venv-device-$*/home sh tests/device_install.sh .venv-device-$*/bin/ergo .venv-device-$*/lenet.ergo $*

bench: setup
	for name in startup attribution energy tracing observer suite engines compare; do $(BIN)/python benchmarks/$$name.py 2>&1 | grep -v ^USDT || exit 1; done

# Needs a GPU.
bench-gpu: setup
	$(BIN)/python benchmarks/acceleration.py
	$(BIN)/python benchmarks/acceleration.py --precision tf32 --place both

# What `ergo tune` chooses against every other setting, thirty times: three hours of a quiet machine, more where its host moves cores.
bench-tune: setup engines
	$(BIN)/python benchmarks/tune.py

# Trains on real data in the folder DATA (docs/data.md says how it is laid out): some ten minutes.
accuracy: setup
	$(BIN)/python benchmarks/accuracy.py $(DATA)

# Engines that have environments of their own, through the command line.
test-engines: setup engines
	$(BIN)/pytest -m environments tests/flow/test_environments.py

# Proves every network on every engine and measures those that are right; the result is kept in docs: hours.
matrix: setup engines
	$(BIN)/python docs/matrix.py $(MODELS)

# The README's picture, from the two runs that `make run` has just made.
picture: setup
	$(BIN)/python docs/picture.py

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
