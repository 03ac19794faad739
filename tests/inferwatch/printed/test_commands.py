"""What commands print of recorded sessions, in every form."""

import re
import shlex
from pathlib import Path

import pytest

from tests.inferwatch.printed.conftest import Printed
from tests.inferwatch.printed.golden import check
from tests.inferwatch.record.test_older_files import RECORDED, named

SLO = "--slo 'ttft_s<40ms itl_s<25ms'"
BATCH = "--batch 64 --context 4096 --gpu-hour 2.50"
PLANNED = {
    "small": f"--model llama-3-8b --gpu H200 {BATCH}",
    "columns": "--model llama-3-70b --gpu H100 --tp 2,4 --kv-dtype auto,fp8",
    "experts": f"--model deepseek-v3 --gpu A100 --tp 8 {BATCH}",
    "objective": "--model llama-3-8b --gpu H100,A100 --tp 1 --prompt 1k --output 50 "
    "--rate 40 --slo 'tpot_s<30ms ttft_s<1' --gpu-hour H100=2.5,A100=1.4",
}

REPLAYED = {
    f"replay_{name}.{form}": f"replay {name} {flags}"
    for name in ("gpus", "failing", "ranks", "scraped", "fleet", "interrupted", "empty")
    for form, flags in (("txt", "--headless"), ("json", "--json"))
}
COMPARED = {
    "alike": "before after",
    "worse": "before slow",
    "better": "slow before",
    "short": "before short",
    "nothing": "before empty",
    "other_loads": "before failing",
    "runs": "before after -- slow short",
    "three_sides": "before after slow",
    "tagged": "tag:fast slow",
    "slo": "before slow --slo 'ttft_s<0.1 tpot_s<20ms'",
    "span": "before slow --a-from 5 --a-to 30 --b-from 5 --warmup none",
}
WHOLE = {"alike", "worse", "runs"}
"""Of which there are pages, too."""
FORMS = {"txt": "--text", "json": "--json", "md": "--markdown", "html": "--html -"}
EXPORTED = {
    "requests.csv": "--format csv --what requests",
    "steps.csv": "--format csv --what steps",
    "tables.jsonl": "--format jsonl --token-times",
    "page.html": "--format html",
    "events.trace": "--format perfetto",
}

COMMANDS = {
    "sessions.txt": "sessions",
    "sessions.json": "sessions --json",
    "sessions_of_sample.txt": "sessions --db sample.db",
    "sessions_none.txt": "sessions --db none.db",
    "replay_sample.txt": "replay sample.db --headless",
    "replay_sample.json": "replay sample.db --json",
    "replay_at.txt": "replay sample.db --headless --at 12s",
    "replay_before_anything.txt": "replay sample.db --headless --at 0s",
    "replay_slo.txt": f"replay sample.db --headless {SLO}",
    "replay_slo.json": f"replay sample.db --json {SLO}",
    "replay_slo_met.txt": "replay sample.db --headless --slo 'ttft_s<60'",
    "replay_slo_target.txt": f"replay small --headless {SLO} --slo-target 0.9",
    "replay_gpu_hour.txt": "replay gpus --headless --gpu-hour 2.5",
    "replay_gpu_hour.json": "replay gpus --json --gpu-hour 2.5",
    "replay_kwh.txt": "replay gpus --headless --kwh 0.3 --currency €",
    "replay_slo_scraped.txt": f"replay scraped --headless {SLO}",
    "replay_unknown.txt": "replay nobody --headless",
    **REPLAYED,
    **{f"replay_{named(e)}.txt": f"replay {named(e)}.db --headless" for e in RECORDED},
    "replay_schema_1.json": "replay schema_1.db --json",
    "replay_schema_8.json": "replay schema_8.db --json",
    "why_sample.txt": "why sample.db",
    "why_sample.json": "why sample.db --json --most 1",
    "why_most.txt": "why sample.db --most 12 --at 20s",
    "why_prefix.txt": "why sample.db --prefix",
    "why_prefix.json": "why sample.db --prefix --json",
    "why_prefix_scraped.txt": "why scraped --prefix",
    "why_sampling.txt": "why sample.db --sampling",
    "why_sampling.json": "why small --sampling --json",
    "why_gpus.txt": "why gpus",
    "why_ranks.txt": "why ranks",
    "why_small.json": "why small --json --most 2",
    "why_failing.txt": "why failing",
    "why_scraped.txt": "why scraped",
    "why_scraped.json": "why scraped --json",
    "why_empty.txt": "why empty",
    "why_all.txt": "why --all sample.db",
    "why_all.json": "why --all small --json",
    "why_all_at.txt": "why --all small --at 1s",
    "why_all_ranks.txt": "why --all ranks",
    "why_all_scraped.txt": "why --all scraped",
    "why_all_request.txt": "why --all small cmpl-3",
    "why_tenants.txt": "why --tenants sample.db",
    "why_tenants.json": "why --tenants ranks --json",
    "why_tenants_several.txt": "why --tenants tenants.db",
    "why_tenants_several.json": "why --tenants tenants.db --json",
    "why_tenants_at.txt": "why --tenants tenants.db --at 0s",
    "why_tenants_scraped.txt": "why --tenants scraped",
    "why_tenants_most.txt": "why --tenants small --most 3",
    "why_prefix_at.txt": "why sample.db --prefix --at 0s",
    "why_request.txt": "why small cmpl-3",
    "why_request.json": "why small cmpl-3 --json",
    "why_request_unknown.txt": "why small nobody",
    "why_request_ambiguous.txt": "why small cmpl",
    "what_if_seqs.txt": "what-if sample.db --max-num-seqs 8 --max-num-seqs 16",
    "what_if_seqs.json": "what-if sample.db --max-num-seqs 8 --max-num-seqs 16 --json",
    "what_if_more.txt": "what-if sample.db --max-num-batched-tokens 1024 --rate 2",
    "what_if_rate.txt": "what-if sample.db --rate 0.5 --kv-blocks 128",
    "what_if_tokens.txt": "what-if sample.db --max-num-batched-tokens 128",
    "what_if_priority.txt": "what-if tenants.db --priority 'chat=0 bulk=10'",
    "what_if_priority.json": "what-if tenants.db --priority 'chat=0 bulk=10' --json",
    "what_if_priority_unknown.txt": "what-if tenants.db --priority 'nobody=0'",
    "what_if_priority_huge.txt": f"what-if tenants.db --priority 'chat={1 << 63}'",
    "what_if_impossible.txt": "what-if sample.db --kv-blocks 3",
    "what_if_impossible.json": "what-if sample.db --kv-blocks 3 --json",
    "what_if_small.txt": "what-if small --rate 2",
    "what_if_scraped.txt": "what-if scraped --rate 2",
    "review_sample.txt": "review sample.db",
    "review_sample.md": "review sample.db --for batch --markdown",
    "review_schema_12.txt": "review schema_12.db",
    "review_schema_12.json": "review schema_12.db --json",
    "review_scraped.txt": "review scraped",
    "review_fleet.txt": "review fleet",
    "review_nothing.txt": "review empty",
    "review_odd.txt": "review sample.db --json --markdown",
    **{
        f"plan_{name}.{form}": f"plan {asked} {flag}"
        for name, asked in PLANNED.items()
        for form, flag in (("txt", ""), ("json", "--json"))
    },
    "plan_unfit.txt": "plan --model llama-3-405b --gpu L40S --fail-if-not-fit",
    "plan_measured.txt": "plan --model llama-3-8b --gpu A100 --measured-tpot 7.1ms",
    "plan_unheld.txt": "plan 8b --gpu L40S --tp 1,2 --rate 5 --slo 'tpot_s<2ms'",
    "plan_largest.txt": "plan 8b --gpu H100 --tp 1,2 --slo tpot_s<20ms",
    "plan_shape.txt": "plan --layers 32 --hidden 4096 --heads 32 --kv-heads 8 "
    "--ffn 14336 --vocab 128256 --gpu mine --peak-gbps 2000 --peak-tflops 300 "
    "--memory-gb 64",
    "replay_nonsense.txt": "replay sample.db --headless --slo-target 90",
    "plan_unknown.txt": "plan --model lama-3-8b --gpu H200",
    **{
        f"compare_{name}.{form}": f"compare {sides} {flag}"
        for name, sides in COMPARED.items()
        for form, flag in FORMS.items()
        if form == "txt"
        or name in WHOLE
        or (form == "json" and name in {"other_loads", "three_sides", "slo"})
    },
    "compare_all_rows.txt": "compare before slow --all",
    "compare_fails.txt": "compare before slow --text --fail-if 'ttft_p99_s > +5%'",
    "compare_fails.json": "compare before slow --json --fail-if 'ttft_p99_s > +5%'",
    "compare_fails.md": "compare before slow --markdown --fail-if 'ttft_p99_s > +5%'",
    "compare_open.txt": "compare before after --text --fail-if 'ttft_p99_s > +1%' "
    "--inconclusive-fails",
    "compare_unknown.txt": "compare before nobody --text",
    "compare_slo.md": "compare before slow --slo 'ttft_s<0.1 tpot_s<20ms' --markdown",
    "compare_odd.txt": "compare s13 before --text",
    "compare_odd.md": "compare s13 before --markdown",
    "compare_odd.html": "compare s13 before --html -",
    "compare_tools.txt": "compare vllm_bench.json guidellm.json --text",
    **{f"export_{name}": f"export small {how} -o -" for name, how in EXPORTED.items()},
    "export_sample.html": "export sample.db --format html -o -",
    "export_sample.trace": "export sample.db --format perfetto --from 20 --to 21 -o -",
    "export_gpus.html": "export gpus --format html -o -",
    "export_gpus.jsonl": "export gpus --format jsonl --what gpu -o -",
    "export_failing.html": "export failing --format html -o -",
    "export_client.jsonl": "export failing --format jsonl --what client -o -",
    "export_notes.jsonl": "export small --format jsonl --what notes -o -",
    "export_scraped.html": "export scraped --format html -o -",
    "export_scraped.trace": "export scraped --format perfetto -o -",
    "export_odd.html": "export s13 --format html -o -",
    "export_odd.trace": "export s13 --format perfetto -o -",
    "export_empty.html": "export empty --format html -o -",
    "tune_list.txt": "tune --list --db tunes.db",
    "tune_list.json": "tune --list --db tunes.db --json",
    "tune_none.txt": "tune --list",
    "tune.txt": "tune --show t1 --db tunes.db",
    "tune.json": "tune --show t1 --db tunes.db --json",
    "tune.md": "tune --show t1 --db tunes.db --markdown",
    "tune_cut.txt": "tune --show t2 --db tunes.db",
    "tune_unknown.txt": "tune --show t9 --db tunes.db",
}


VARIANTS = {
    *(f"replay_{named(each)}.txt" for each in RECORDED[1:-1]),
    "replay_slo_met.txt",
    "compare_tagged.txt",
    "compare_span.txt",
    "compare_better.txt",
    "what_if_tokens.txt",
    "what_if_impossible.json",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if name in VARIANTS else ())
        for name in COMMANDS
    ],
)
def test_it_prints_what_it_printed(name: str, printed: Printed) -> None:
    check(name, printed(*shlex.split(COMMANDS[name])))


DELETED = re.compile(r'("deleted_ns": )\d+')
CHANGES = {
    "rename": ("rename small tiny",),
    "tag": ("tag small keep h200", "untag before fast"),
    "delete": ("delete small gpus", "--bin", "restore s1"),
    "prune_size": ("prune --max-size 9.5MB --dry-run",),
    "prune_age": ("prune --older-than 1d --dry-run",),
    "recover": ("recover new.db",),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("form", ["txt", "json"])
def test_a_command_that_changes_sessions_says_what_it_did(
    name: str, form: str, own_copy: Path, printed: Printed
) -> None:
    flags = ["--json"] if form == "json" else []

    told = [printed("sessions", *each.split(), *flags) for each in CHANGES[name]]

    check(f"sessions_{name}.{form}", DELETED.sub(r"\1-1", "".join(told)))
