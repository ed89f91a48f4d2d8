# make demo   train on a real table's secret labels, beside models without privacy; verify the result, write its report
# make test   the tests, in six minutes on two cores (make test-slow: long statistics and whole runs; make test-fresh: new noise)
# make stress campaigns: kills, races, fuzzing, attacks with 10^7 draws (hours; pytest tests/stress -m stress -k NAME for one)
# make check  ruff and pyright
# make docs   the site from docs/, in build/site; a warning is an error
# make wheel  wheel and source distribution in build/dist, each tried in an empty environment
# make release-check   what a release has to pass: the wheel, README, tutorials, mistakes, links, spelling (scripts/walk.py)
# make spark  PySpark for labeldp.engines.spark and its tests (half a gigabyte; needs Java 17)
# make bench  every benchmark in benchmarks/, ours beside a reference (projection, tabular, big_tables and spark are long: run them by hand)
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-fresh stress check format docs wheel release-check bench spark clean

demo: .venv/train.stamp
	@rm -rf demo
	@$(BIN)/labeldp demo --out demo

test: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-fresh: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal --fresh

stress: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal -m stress tests/stress

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel:
	$(PYTHON) scripts/try_wheel.py

release-check: .venv/dev.stamp
	$(BIN)/python scripts/walk.py

spark: .venv/spark.stamp

bench: .venv/dev.stamp
	@for file in $(filter-out benchmarks/projection.py benchmarks/tabular.py benchmarks/big_tables.py benchmarks/spark.py, $(wildcard benchmarks/*.py)); do echo "== $$file"; PYTHONPATH=. $(BIN)/python $$file || exit 1; done

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/train.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[sklearn]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[dev]'
	@touch .venv/train.stamp $@

.venv/spark.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[spark]' 'pyspark[connect]'
	@touch $@

.venv/docs.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv demo build *.egg-info
