# Two commands do everything: `make demo` and `make test`. Both set up .venv first.
bin := .venv/bin

.PHONY: demo test check light bench screenshots sample clean

.venv/.installed: pyproject.toml requirements/engine-cpu.txt .ci/setup
	@.ci/setup

demo: .venv/.installed  ## a live dashboard on a small vLLM engine, with load
	@$(bin)/inferwatch demo

# Tests that start processes mostly wait: the light ones take what they leave.
test: .venv/.installed  ## all tests, real vLLM included; a failure ends no suite but its own
	@$(bin)/python .ci/suites

light: .venv/.installed  ## the tests that start no process
	@$(bin)/python .ci/suites light

check: .venv/.installed  ## format, lint, types, arrows, spelling
	@$(bin)/ruff format --check .
	@$(bin)/ruff check .
	@$(bin)/mypy
	@$(bin)/lint-imports --no-cache
	@$(bin)/codespell
	@$(bin)/python .ci/sizes

bench: .venv/.installed  ## ratios against peers and limits, printed as tables
	@for f in benchmarks/*.py; do echo "== $$f"; $(bin)/python $$f || exit 1; done

screenshots: .venv/.installed  ## screenshots/*.svg from the real program
	@$(bin)/python screenshots/make.py

sample: .venv/.installed  ## inferwatch/sample: some 36 s of the demo, recorded anew
	@rm -rf build/sample && mkdir -p build/sample
	@$(bin)/inferwatch demo --headless --duration 36 --name sample \
		--db build/sample/sample.db
	@$(bin)/python -m inferwatch.sample.pack build/sample/sample.db

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
