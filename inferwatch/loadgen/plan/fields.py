"""The fields of a load plan, each declared once.

The type of a field carries its ``PlanOption``: bounds, flag, help and form row.
Validation, the flags and help of ``inferwatch load`` and the form of the Load screen
are derived from it. A new field needs its declaration here and code that uses it.
"""

from typing import Annotated, Any

import msgspec

from inferwatch.loadgen.plan.lengths import MOST_TOKENS, Lengths, Range, fixed
from inferwatch.loadgen.plan.option import (
    ABOVE_0_S,
    FROM_0_S,
    MOST_CONNECTIONS,
    MOST_REQUESTS,
    MOST_S,
    RATE,
    USERS,
    Bounds,
    Flag,
    FormRow,
    Heading,
    PlanOption,
    ShownBounds,
)
from inferwatch.loadgen.plan.parts import (
    Api,
    Arrivals,
    PromptForm,
    RequestClass,
    SharedPrefixes,
    TraceRow,
    TransportKind,
)
from inferwatch.loadgen.plan.rates import RateSeries
from inferwatch.loadgen.plan.text import (
    rate_row,
    read_class,
    read_groups,
    read_lengths,
    read_object,
    read_rate_row,
    read_rates,
    read_slo,
    read_slo_row,
)
from inferwatch.loadgen.scenarios.scenario import ASKED, SCENARIOS, scenario_row

WHEN, WHAT, HOW, HOLDS = Heading.WHEN, Heading.WHAT, Heading.HOW, Heading.HOLDS
OUTPUT_TOKENS = Range(32, 128)
MAX_IN_FLIGHT = 512
SPACED = ("poisson", "constant", "gamma")
"""Arrival processes with a rate."""
OPEN = frozenset(map(Arrivals, SPACED))
CLOSED = frozenset({Arrivals.CLOSED})
TRACE = frozenset({Arrivals.TRACE})


class PlanFields(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """All fields of a plan, with their flags and form rows."""

    run_id: str
    model: Annotated[
        str,
        PlanOption(
            Flag(
                "--model",
                WHAT,
                1,
                "Which model to ask.  [default: the first that the server lists]",
            )
        ),
    ]
    url: str = "http://localhost"
    """URL of the server, without ``/v1``."""
    uds: str | None = None
    """Unix socket the server listens on."""
    scenario: Annotated[
        str | None,
        PlanOption(
            Flag(
                "--scenario",
                WHEN,
                0,
                f"A load that answers one question, unless other options change it; "
                f"without a rate it takes a share of what the server brings. {ASKED}",
                words=tuple(SCENARIOS),
            ),
            row=FormRow(
                "scenario", 13, "scenario", "like interference", read=scenario_row
            ),
        ),
    ] = None
    """Scenario the load was made for; the result ends with its answer."""
    seed: Annotated[
        int,
        PlanOption(
            Flag(
                "--seed",
                WHEN,
                15,
                "The same seed gives the same load.  [default: 0]",
                shown=ShownBounds.NEITHER,
            ),
            bounds=Bounds(0, 1 << 62),
            row=FormRow("seed", 9, "seed", "same seed repeats"),
        ),
    ] = 0
    prompt_tokens: Annotated[
        Lengths,
        PlanOption(
            Flag(
                "--prompt-tokens",
                WHAT,
                3,
                "Length of prompts; lognormal:MEDIAN,SIGMA works too.  "
                "[default: 32-128]",
                metavar="N|LOW-HIGH",
            ),
            read=read_lengths,
            row=FormRow("prompt", 7, "prompt tokens", "like 64 or 32-128"),
        ),
    ] = Range(32, 128)
    output_tokens: Annotated[
        Lengths,
        PlanOption(
            Flag(
                "--output-tokens",
                WHAT,
                4,
                "Length of answers; lognormal:MEDIAN,SIGMA works too.  "
                "[default: 32-128]",
                metavar="N|LOW-HIGH",
            ),
            read=read_lengths,
            row=FormRow("output", 8, "output tokens", "like 64 or 32-128"),
        ),
    ] = OUTPUT_TOKENS
    """If a dataset has its own lengths, these apply only if they are not the
    default."""
    classes: Annotated[
        tuple[RequestClass, ...],
        PlanOption(
            Flag(
                "--class",
                WHAT,
                5,
                "One class of requests in a mix; repeat it for each class: 'name=chat "
                'share=0.98 prompt=200-800 output=100 slo="ttft_s<0.5" priority=0\'. '
                "vLLM heeds priorities under --scheduling-policy priority alone.",
                metavar="'KEY=VALUE ...'",
                repeats=True,
            ),
            read=read_class,
        ),
    ] = ()
    """A mix of request classes, instead of the two lengths above."""
    slo: Annotated[
        str | None,
        PlanOption(
            Flag(
                "--slo",
                HOLDS,
                1,
                "Objectives, such as 'ttft_s<0.5 tpot_s<50ms'. A request is good when "
                "it meets them all; exit status 1 when fewer than --share are good.",
                metavar="LIMITS",
            ),
            read=read_slo,
            row=FormRow("slo", 12, "SLO", "met at once", read=read_slo_row),
        ),
    ] = None
    """Objectives of every request, unless its class has its own."""
    shared_prefixes: Annotated[
        SharedPrefixes,
        PlanOption(
            Flag(
                "--shared-prefix",
                WHAT,
                6,
                "Begin each prompt with one of GROUPS common prefixes of TOKENS "
                "tokens, such as 4x512.",
                metavar="GROUPSxTOKENS",
            ),
            read=read_groups,
        ),
    ] = SharedPrefixes()
    dataset: Annotated[
        str | None,
        PlanOption(
            Flag(
                "--dataset",
                WHAT,
                9,
                "Take prompts from FILE: JSON lines with prompt or messages, or "
                "ShareGPT. Answers are as long as those in FILE, unless "
                "--output-tokens is given. Prompts are never recorded.",
                is_file=True,
                metavar="FILE",
            )
        ),
    ] = None
    """File of prompts, read by the generator, instead of synthetic ones. Recordings
    hold only the file's name, never a prompt."""
    turns: Annotated[
        Lengths,
        PlanOption(
            Flag(
                "--turns",
                WHAT,
                7,
                "Hold conversations of so many turns. Each turn repeats all that was "
                "said so far, real answers included, and is sent --think seconds "
                "after the answer; --requests then counts conversations.",
                metavar="N|LOW-HIGH",
            ),
            read=read_lengths,
        ),
    ] = fixed(1)
    """Turns per conversation: each repeats everything before it, and is due ``think_s``
    after the response. With a dataset: at most so many."""
    turn_tokens: Annotated[
        Lengths | None,
        PlanOption(
            Flag(
                "--turn-tokens",
                WHAT,
                8,
                "What each later turn adds.  [default: as --prompt-tokens]",
                metavar="N|LOW-HIGH",
            ),
            read=read_lengths,
        ),
    ] = None
    """Tokens added by a turn after the first; None: as many as a prompt."""
    token_ids: Range = Range(300, 999)
    """Token ids prompts are drawn from: ordinary tokens, no special ones."""
    arrivals: Annotated[
        Arrivals,
        PlanOption(
            Flag(
                "--arrival",
                WHEN,
                2,
                "How requests are spaced in time.  [default: poisson]",
                words=SPACED,
            )
        ),
    ] = Arrivals.POISSON
    rate_per_s: Annotated[
        float | None,
        PlanOption(
            Flag(
                "--rate",
                WHEN,
                1,
                "Requests per second, each sent when it is due, answered or not: "
                "an open loop.",
                metavar="R",
            ),
            bounds=RATE,
            of=OPEN,
            elsewhere="a closed loop has no rate_per_s: its users ask again "
            "once answered",
            row=FormRow(
                "rate",
                1,
                "rate",
                "/s or ramp:1,9,60",
                read=read_rate_row,
                write=rate_row,
            ),
        ),
    ] = None
    """Requests per second; None: ``rate_fraction`` of what the warm-up measured."""
    rate_fraction: Annotated[float, PlanOption(bounds=Bounds(0, 100, above=True))] = 0.6
    rates: Annotated[
        RateSeries | None,
        PlanOption(
            Flag(
                "--rates",
                WHEN,
                4,
                "A rate that changes over time, instead of --rate: '0:5 30:20' "
                "(SECOND:RATE, straight lines in between), ramp:FROM,TO,SECONDS, "
                "steps:SECONDS,RATE,RATE,... or onoff:RATE,SECONDS,PAUSE.",
                metavar="BY-TIME",
            ),
            of=OPEN,
            elsewhere="a closed loop has no rates: its users ask again once answered",
            read=read_rates,
        ),
    ] = None
    """A rate that varies over time after the warm-up, instead of ``rate_per_s``."""
    burstiness: Annotated[
        float,
        PlanOption(
            Flag(
                "--burstiness",
                WHEN,
                3,
                "For --arrival gamma: 1 is Poisson, 0.25 comes in bursts.",
            ),
            bounds=Bounds(0, 1e6, above=True),
            of=frozenset({Arrivals.GAMMA}),
            elsewhere="burstiness applies to gamma arrivals: add --arrival gamma",
            row=FormRow("burstiness", 2, "burstiness", "0.25 is bursty"),
        ),
    ] = 1.0
    """Shape of gamma arrivals, as in vLLM: 1 is Poisson, 0.25 is bursty, 4 is nearly
    even."""
    concurrency: Annotated[
        int,
        PlanOption(
            Flag(
                "--concurrency",
                WHEN,
                5,
                "N users, each with one request at a time: a closed loop, which hides "
                "queueing.",
                metavar="N",
            ),
            bounds=USERS,
            of=CLOSED,
            elsewhere="concurrency is for a closed loop, which has no rate and "
            "no trace",
            row=FormRow("users", 3, "users", "one request each"),
        ),
    ] = 1
    """Users of a closed loop."""
    think_s: Annotated[
        float,
        PlanOption(
            Flag(
                "--think",
                WHEN,
                6,
                "How long each user waits between an answer and the next request.",
                metavar="SECONDS",
            ),
            bounds=FROM_0_S,
            of=CLOSED,
            elsewhere="think needs a closed loop (--concurrency) or conversations "
            "(--turns)",
            row=FormRow("think", 4, "think", "s after an answer"),
        ),
    ] = 0.0
    """Pause of each user between a response and the next request."""
    trace: Annotated[
        tuple[TraceRow, ...],
        PlanOption(
            Flag(
                "--trace",
                WHEN,
                7,
                "Take times and lengths from a trace: Mooncake JSONL, Azure or "
                "BurstGPT CSV.",
                key="trace_file",
                is_file=True,
                metavar="FILE",
            ),
            Flag(
                "--trace-format",
                WHEN,
                8,
                "Format of --trace.  [default: detected from its first line]",
                key="trace_format",
                words=("mooncake", "azure", "burstgpt"),
            ),
            Flag(
                "--like",
                WHEN,
                9,
                "Repeat the traffic of a recorded session: its id, its name or 'last'.",
                key="like",
                metavar="SESSION",
            ),
            of=TRACE,
        ),
    ] = ()
    """The rows of the trace in order of time."""
    trace_of: Annotated[str | None, PlanOption(of=TRACE)] = None
    """Origin of the trace; a recorded plan keeps this instead of the rows."""
    speed: Annotated[
        float,
        PlanOption(
            Flag(
                "--speed",
                WHEN,
                10,
                "Pace of --trace or --like: 2 takes half the time.  [default: 1]",
                metavar="X",
                shown=ShownBounds.BOTH,
            ),
            bounds=Bounds(0.1, 10),
            of=TRACE,
        ),
    ] = 1.0
    """At 2, a trace takes half its time."""
    warmup_s: Annotated[
        float,
        PlanOption(
            Flag(
                "--warmup",
                WHEN,
                13,
                "Send for this long before anything is counted.  [default: 0]",
                metavar="SECONDS",
            ),
            bounds=FROM_0_S,
            row=FormRow("warmup", 11, "warm-up", "s, not counted"),
        ),
    ] = 3.0
    """Requests of the warm-up are marked. If it has to measure the rate, it is a closed
    loop counted from the first token; otherwise it is the start of the schedule, before
    its rates begin."""
    warmup_streams: Annotated[int, PlanOption(bounds=USERS)] = 16
    """Requests in flight while the rate is measured."""
    burst_every_s: Annotated[
        float | None,
        PlanOption(
            Flag(
                "--burst-every",
                WHEN,
                16,
                "Send --burst-requests at once every so often, beside the rate.",
                metavar="SECONDS",
            ),
            bounds=Bounds(0.01, MOST_S),
            of=OPEN,
            elsewhere="bursts are added to a rate: only an open loop has them",
        ),
    ] = None
    burst_tokens: Annotated[int, PlanOption(bounds=Bounds(0, 1 << 40), of=OPEN)] = 0
    """KV cache a burst needs, in tokens; shared prefixes are not counted."""
    burst_requests: Annotated[
        int | None,
        PlanOption(
            Flag("--burst-requests", WHEN, 17, "Of each burst.", metavar="N"),
            bounds=Bounds(1, MOST_CONNECTIONS),
            of=OPEN,
            elsewhere="bursts are added to a rate: only an open loop has them",
        ),
    ] = None
    """Requests per burst, instead of ``burst_tokens``."""
    hang_up: Annotated[
        float,
        PlanOption(
            Flag(
                "--hang-up",
                WHAT,
                13,
                "Share of the requests whose client hangs up in the middle of the "
                "answer.  [default: 0]",
                metavar="SHARE",
                shown=ShownBounds.BOTH,
            ),
            bounds=Bounds(0, 1),
        ),
    ] = 0.0
    """Chosen by the seed. They count as hung up, not as failures of the server."""
    hang_up_after_tokens: Annotated[
        int,
        PlanOption(
            Flag(
                "--hang-up-after",
                WHAT,
                14,
                "These hang up at the N-th chunk with tokens.  [default: 8]",
                metavar="N",
            ),
            bounds=Bounds(1, MOST_TOKENS),
        ),
    ] = 8
    ask_again_after: Annotated[
        int,
        PlanOption(
            Flag(
                "--ask-again-after",
                WHAT,
                15,
                "Ask each prompt a second time, N other prompts later: cold, then warm "
                "in a prefix cache.  [default: 0, never]",
                metavar="N",
            ),
            bounds=Bounds(0, MOST_REQUESTS),
        ),
    ] = 0
    duration_s: Annotated[
        float | None,
        PlanOption(
            Flag(
                "--duration",
                WHEN,
                11,
                "How long to send.  [default: 30; with --requests, --trace or "
                "--like: until all is sent]",
                metavar="SECONDS",
            ),
            bounds=ABOVE_0_S,
            row=FormRow("duration", 5, "duration", "s; empty: endless"),
        ),
    ] = None
    """Time of sending after the warm-up; None: until stopped."""
    requests: Annotated[
        int | None,
        PlanOption(
            Flag(
                "--requests",
                WHEN,
                12,
                "Stop after N requests, not counting the warm-up.",
                metavar="N",
            ),
            bounds=Bounds(1, MOST_REQUESTS),
            row=FormRow("requests", 6, "requests", "at most"),
        ),
    ] = None
    """Requests to send after the warm-up, or conversations if those have several
    turns."""
    drain_s: Annotated[float | None, PlanOption(bounds=FROM_0_S)] = None
    """How long to wait at the end for requests in flight before they are aborted; None:
    ``request_timeout_s``."""
    max_in_flight: Annotated[
        int,
        PlanOption(
            Flag(
                "--max-in-flight",
                WHEN,
                14,
                "Most requests in flight at once. Others are held back, and their "
                "latency includes that wait.  [default: 512]",
            ),
            bounds=Bounds(1, 1 << 30),
            of=OPEN | TRACE,
            elsewhere="max_in_flight limits an open loop; the users limit a closed one",
            row=FormRow("in_flight", 10, "max in flight", "others wait"),
        ),
    ] = MAX_IN_FLIGHT
    """Further requests wait until one ends, and count as late."""
    request_timeout_s: Annotated[
        float,
        PlanOption(
            Flag(
                "--timeout",
                HOW,
                4,
                "Time limit for a whole request.  [default: 120]",
                metavar="SECONDS",
            ),
            bounds=ABOVE_0_S,
        ),
    ] = 120.0
    temperature: Annotated[
        float | None,
        PlanOption(
            Flag("--temperature", WHAT, 11, "Sampling temperature.  [default: 0]"),
            bounds=Bounds(0, 100),
        ),
    ] = 0.0
    ignore_eos: Annotated[
        bool,
        PlanOption(
            Flag(
                "--ignore-eos/--heed-eos",
                WHAT,
                10,
                "Generate each answer to its full length, or stop where the model "
                "does.  [default: --ignore-eos]",
            )
        ),
    ] = True
    endpoint: Annotated[
        Api,
        PlanOption(
            Flag(
                "--endpoint",
                WHAT,
                2,
                "Which endpoint to use.  [default: completions]",
                words=tuple(Api),
            )
        ),
    ] = Api.COMPLETIONS
    prompt_form: PromptForm = PromptForm.AUTO
    extra_body: Annotated[
        dict[str, Any],
        PlanOption(
            Flag(
                "--body",
                WHAT,
                12,
                "Add these fields to the body of each request, such as "
                "'{\"top_p\": 0.9}'.",
                metavar="JSON",
            ),
            read=read_object,
        ),
    ] = {}
    """Merged into each body, overriding our fields: sampling options and the like."""
    headers: dict[str, str] = {}
    transport: Annotated[
        TransportKind,
        PlanOption(
            Flag(
                "--transport",
                HOW,
                1,
                "raw is plain HTTP/1.1, with the least lag.  [default: raw where "
                "possible]",
                words=tuple(TransportKind),
            )
        ),
    ] = TransportKind.AUTO
    http2: Annotated[
        bool,
        PlanOption(
            Flag("--http2", HOW, 2, "Use HTTP/2; needs the package h2.", sets=True)
        ),
    ] = False
    verify_tls: Annotated[
        bool,
        PlanOption(
            Flag(
                "--insecure",
                HOW,
                3,
                "Do not verify the server's certificate.",
                sets=False,
            )
        ),
    ] = True

    @property
    def measures_rate(self) -> bool:
        """Whether the warm-up has to measure the rate, as none is given."""
        given = self.rate_per_s is not None or self.rates is not None
        return not given and self.arrivals not in {Arrivals.CLOSED, Arrivals.TRACE}

    @property
    def converses(self) -> bool:
        return self.turns != fixed(1)
