# Every target makes the environment it needs, says so, and uses it again the next time: see .ci/env.
.PHONY: help demo test check docs pytest bench clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

demo_python = $$(.ci/env demo)
test_python = $$(.ci/env test)

help:            ## list the targets
	@sed -n 's/^\([a-z]*\): .*## /  make \1\t/p' Makefile

demo:            ## train on real data in place: examples/quickstart.py
	@python=$(demo_python) && "$$python" examples/quickstart.py

test: check docs pytest  ## everything: what .ci/run runs

check:           ## under a minute: format, lint, types, layers, architecture
	@python=$(test_python) && .ci/check "$$python"

docs:            ## build docs/_build/html, warnings are errors
	@python=$(test_python) && set -x && "$$python" -m sphinx -q -W -n --keep-going -E -b html docs docs/_build/html

pytest:
	@python=$(test_python) && set -x && "$$python" -m pytest -n auto --dist loadfile

bench:           ## measure: tests/benchmarks
	@python=$(test_python) && set -x && "$$python" -m pytest tests/benchmarks --benchmark-enable --benchmark-group-by=group

clean:           ## remove the environments and everything built
	rm -rf .venv-demo .venv-test build dist docs/_build docs/reference/generated
