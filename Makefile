# Two commands do everything: `make demo` and `make test`. Both set up .venv first.
bin := .venv/bin

.PHONY: demo test light soak check bench bench-quick screenshots sample clean

.venv/.installed: pyproject.toml requirements/engine-cpu.txt .ci/setup
	@.ci/setup

demo: .venv/.installed  ## a live dashboard on a small vLLM engine, with load
	@$(bin)/inferwatch demo

test: .venv/.installed  ## every behaviour once, real vLLM included; FILES=tests/... for a part
	@$(bin)/python .ci/suites test $(FILES)

light: .venv/.installed  ## those of them that start no process
	@$(bin)/python .ci/suites light $(FILES)

soak: .venv/.installed  ## variants and what is exhaustive: before a change is called done
	@$(bin)/python .ci/suites soak $(FILES)

check: .venv/.installed  ## format, lint, types, arrows, spelling
	@$(bin)/ruff format --check .
	@$(bin)/ruff check .
	@$(bin)/mypy
	@$(bin)/lint-imports --no-cache
	@$(bin)/codespell
	@$(bin)/python .ci/sizes

bench: .venv/.installed  ## ratios against peers and limits, printed as tables
	@for f in $(filter-out %/quick.py,$(wildcard benchmarks/*.py)); do echo "== $$f"; $(bin)/python $$f || exit 1; done

bench-quick: .venv/.installed  ## what watching costs, beside the last release; KEEP=--keep
	@$(bin)/python benchmarks/quick.py $(KEEP)

screenshots: .venv/.installed  ## screenshots/*.svg from the real program
	@$(bin)/python screenshots/make.py

sample: .venv/.installed  ## inferwatch/sample: some 36 s of the demo, recorded anew
	@rm -rf build/sample && mkdir -p build/sample
	@$(bin)/inferwatch demo --headless --duration 36 --name sample \
		--db build/sample/sample.db
	@$(bin)/python -m inferwatch.sample.pack build/sample/sample.db

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
