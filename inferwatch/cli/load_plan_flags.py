"""Flags of a load plan; they bear its fields' names."""

from pathlib import Path

import click

from inferwatch.cli.options import FiniteRange

POSITIVE = FiniteRange(min=0, min_open=True)
COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path, dir_okay=False)

WHEN = [
    click.option(
        "--plan", type=FILE, help="All of it in a TOML file; flags win over that."
    ),
    click.option(
        "--rate",
        "rate_per_s",
        type=POSITIVE,
        metavar="R",
        help="Requests per second, sent when due: an open loop.",
    ),
    click.option(
        "--arrival",
        "arrivals",
        type=click.Choice(["poisson", "constant", "gamma"]),
        help="How the due times are spaced.  [default: poisson]",
    ),
    click.option(
        "--burstiness",
        type=POSITIVE,
        help="Of gamma arrivals: 1 is Poisson, 0.25 comes in clumps.",
    ),
    click.option(
        "--rates",
        metavar="BY-TIME",
        help="Instead of --rate: '0:5 30:20' (seconds:rate, straight lines between), "
        "ramp:FROM,TO,SECONDS, steps:SECONDS,RATE,RATE,... or "
        "onoff:RATE,SECONDS,PAUSE.",
    ),
    click.option(
        "--concurrency",
        type=COUNT,
        metavar="N",
        help="N users who ask again when answered: a closed loop; hides queueing.",
    ),
    click.option(
        "--think",
        "think_s",
        type=FiniteRange(min=0),
        metavar="SECONDS",
        help="What each user waits before asking again.",
    ),
    click.option(
        "--trace",
        "trace_file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Send when and as long as others did: Mooncake JSONL, Azure or BurstGPT "
        "CSV.",
    ),
    click.option(
        "--trace-format",
        type=click.Choice(["mooncake", "azure", "burstgpt"]),
        help="Of --trace.  [default: told by its first line]",
    ),
    click.option(
        "--like",
        metavar="SESSION",
        help="Send when and as long as in a recorded session: id, name or 'last'.",
    ),
    click.option(
        "--speed",
        type=FiniteRange(0.1, 10),
        metavar="X",
        help="Of --trace or --like: at 2 it takes half its time.  [default: 1]",
    ),
    click.option(
        "--duration",
        "duration_s",
        type=POSITIVE,
        metavar="SECONDS",
        help="Of sending.  [default: 30; with --requests, --trace or --like: to the "
        "end]",
    ),
    click.option(
        "--requests",
        type=COUNT,
        metavar="N",
        help="Stop after N; those of the warm-up are not among them.",
    ),
    click.option(
        "--warmup",
        "warmup_s",
        type=FiniteRange(min=0),
        metavar="SECONDS",
        help="Send so long before anything counts.  [default: 0]",
    ),
    click.option(
        "--max-in-flight",
        type=COUNT,
        help="What is due beyond waits, leaves late, and counts.  [default: 512]",
    ),
    click.option("--seed", type=int, help="Same seed, same load.  [default: 0]"),
]

WHAT = [
    click.option("--model", help="Default: the first that the server lists."),
    click.option(
        "--endpoint",
        type=click.Choice(["completions", "chat"]),
        help="Which of the two to ask.  [default: completions]",
    ),
    click.option(
        "--prompt-tokens",
        metavar="N|LOW-HIGH",
        help="Or lognormal:MEDIAN,SIGMA.  [default: 32-128]",
    ),
    click.option(
        "--output-tokens",
        metavar="N|LOW-HIGH",
        help="Or lognormal:MEDIAN,SIGMA.  [default: 32-128]",
    ),
    click.option(
        "--class",
        "classes",
        multiple=True,
        metavar="'KEY=VALUE ...'",
        help="A kind of request in a mix, again for each: 'name=chat share=0.98 "
        'prompt=200-800 output=100 slo="ttft_s<0.5"\'.',
    ),
    click.option(
        "--shared-prefix",
        "shared_prefixes",
        metavar="GROUPSxTOKENS",
        help="Each prompt begins as one of so many do, as 4x512: for prefix caches.",
    ),
    click.option(
        "--turns",
        metavar="N|LOW-HIGH",
        help="Conversations: each turn repeats all that was said, real answers "
        "included, --think after the answer. --requests counts conversations.",
    ),
    click.option(
        "--turn-tokens",
        metavar="N|LOW-HIGH",
        help="What a later turn adds.  [default: as --prompt-tokens]",
    ),
    click.option(
        "--dataset",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Prompts of a file, never recorded: JSON lines with prompt or messages, "
        "or ShareGPT. Answers are as long as there, unless --output-tokens.",
    ),
    click.option(
        "--ignore-eos/--heed-eos",
        default=None,
        help="Answers have their full length, or end where the model ends them.  "
        "[default: ignore]",
    ),
    click.option("--temperature", type=FiniteRange(min=0), help="[default: 0]"),
    click.option(
        "--body",
        "extra_body",
        metavar="JSON",
        help="Into each request, as '{\"top_p\": 0.9}'.",
    ),
]

HOW = [
    click.option("--uds", type=FILE, help="The server's Unix socket."),
    click.option(
        "--header", multiple=True, metavar="'NAME: VALUE'", help="With each request."
    ),
    click.option(
        "--transport",
        type=click.Choice(["auto", "raw", "httpx"]),
        help="raw: plain HTTP/1.1, least lag.  [default: raw where it applies]",
    ),
    click.option("--http2", is_flag=True, default=None, help="Needs the package h2."),
    click.option(
        "--insecure",
        "verify_tls",
        flag_value=False,
        default=None,
        help="Accept any certificate.",
    ),
    click.option(
        "--timeout",
        "request_timeout_s",
        type=POSITIVE,
        metavar="SECONDS",
        help="For a whole request.  [default: 120]",
    ),
    click.option(
        "--allow-load", is_flag=True, help="Even if the server works for others."
    ),
]
