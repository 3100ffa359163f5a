# make demo: the main job, from a repository to a trained model. make test: all tests. Both install what they need first.
PYTHON ?= python3
PY := .venv/bin/python
export PYTHON TORCH_INDEX

.PHONY: setup demo test check bench format
setup:
	@bash scripts/setup.sh

demo: setup
	@$(PY) -m etude demo

test:
	@bash scripts/setup.sh tests
	@$(PY) -m pytest -m "$$(command -v javac >/dev/null && echo 'jdk or not jdk' || echo 'not jdk')"

check: setup
	@$(PY) -m ruff check src tests benchmarks
	@$(PY) -m ruff format --check src tests benchmarks
	@$(PY) -m mypy
	@$(PY) -m pytest tests/unit/test_imports.py

bench: setup
	@for name in feedback_cost feedback_memory feedback_ablation sandbox tasks_yield pool_simulation muon_traffic muon_overlap muon_balance muon_loss newton_schulz_gpu; do \
		echo "== $$name"; $(PY) -m benchmarks.$$name --quick || exit 1; done

format:
	@$(PY) -m ruff check --fix -q src tests benchmarks; $(PY) -m ruff format -q src tests benchmarks examples
