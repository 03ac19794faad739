"""``inferwatch load``: load a server, and report what was measured."""

from typing import Any

import click

from inferwatch.cli.load_options import SECTIONS
from inferwatch.cli.options import SectionedCommand


@click.command(
    cls=SectionedCommand,
    sections=SECTIONS,
)
@click.argument("url", required=False)
def load(url: str | None, **given: Any) -> int:  # noqa: ANN401 - click's
    """Load the server at URL (any that speaks OpenAI's API) and measure it.

    Without URL, the engine that runs on this node is loaded. What is measured is
    recorded as a session. Latencies have 95% intervals; if the client itself was too
    slow, the result says CLIENT-BOUND.

    \b
    20 requests a second for 15 s, arriving at random:
      inferwatch load localhost:8000 --rate 20 --duration 15 --json
    32 users at once, with prompts and answers of a fixed length:
      inferwatch load localhost:8000 --concurrency 32 \\
          --prompt-tokens 512 --output-tokens 128 --requests 500
    Traffic as in a trace, or as in a recorded session:
      inferwatch load localhost:8000 --trace azure.csv --speed 2 --duration 60
      inferwatch load localhost:8000 --like last
    A few huge prompts among chats, each class with its own objectives:
      inferwatch load localhost:8000 --rate 8 \\
          --class 'name=chat share=98 prompt=500 output=100 slo="ttft_s<0.5"' \\
          --class 'name=huge share=2 prompt=32000 output=100 slo="ttft_s<5"'
    Conversations of four turns, with 5 s of thinking in between:
      inferwatch load localhost:8000 --rate 2 --turns 4 --think 5
    Is this rate good enough? The exit status is 1 if not:
      inferwatch load localhost:8000 --rate 8 --slo 'ttft_s<0.5 tpot_s<50ms'
    What is the highest rate that is good enough?
      inferwatch load localhost:8000 --find-rate --slo 'ttft_s<0.5 tpot_s<50ms'

    TTFT and E2EL count from the time a request was due, so they include any wait in
    the client; those marked "from the send" do not. The API key is taken from
    INFERWATCH_API_KEY or OPENAI_API_KEY and never recorded.
    """  # noqa: D301 - \b is click's mark for text it must not rewrap
    from inferwatch.cli.running.load import run_load
    from inferwatch.cli.running.load_plan import LoadOptions

    names = LoadOptions.__dataclass_fields__.keys() & given.keys()
    own = {name: given.pop(name) for name in names}
    return run_load(LoadOptions(url=url, fields=given, **own))
