# Every target makes the environment it needs, says so, and uses it again the next time: see .ci/env.
.PHONY: help demo example-finetune test check types docs pytest bench clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

demo_python = $$(.ci/env demo)
test_python = $$(.ci/env test)
bench_python = $$(.ci/env bench)
finetune_python = $$(.ci/env finetune)

help:            ## list the targets
	@sed -n 's/^\([a-z-]*\): .*## /  make \1\t/p' Makefile

demo:            ## train on real data in place: examples/quickstart.py
	@python=$(demo_python) && "$$python" examples/quickstart.py

example-finetune:  ## train a U-Net on half a gigabyte of weather, then on real climates: some minutes; FINETUNE="--epochs 1"
	@python=$(finetune_python) && set -x && "$$python" -m examples.finetune.train --size full --data weather --out finetune_output/weather $(FINETUNE) && \
	"$$python" -m examples.finetune.train --size full --data iris --init finetune_output/weather/checkpoint.pt --out finetune_output/iris $(FINETUNE)

test: check types docs pytest  ## everything: what .ci/run runs

check:           ## some seconds: format, lint, layers, architecture
	@python=$(test_python) && .ci/check "$$python"

types:           ## types, strict, of everything
	@python=$(test_python) && set -x && MYPY_NUM_WORKERS=$${MYPY_NUM_WORKERS:-2} "$$python" -m mypy

docs:            ## build docs/_build/html, warnings are errors
	@python=$(test_python) && set -x && "$$python" -m sphinx -q -W -n --keep-going -E -b html docs docs/_build/html

pytest:
	@python=$(test_python) && set -x && "$$python" -m pytest -n auto --dist loadfile --no-loadscope-reorder

bench:           ## measure for the docs; BENCH="--rounds 1 --scale 0.1" only looks, BENCH_TORCH=1 adds torch
	@python=$(bench_python) && set -x && "$$python" -m pytest -q tests/benchmarks --benchmark-enable --benchmark-group-by=group && \
	"$$python" -m tests.benchmarks.compare $(or $(BENCH),--publish) && "$$python" -m tests.benchmarks.compare $(or $(BENCH),--publish) --profile

clean:           ## remove the environments and everything built
	rm -rf .venv-demo .venv-test .venv-bench .venv-finetune build dist docs/_build docs/reference/generated
