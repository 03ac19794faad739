"""A failure's cause is found in the log that vLLM 0.32 writes."""

import pytest

from embedded_engine.engine.engine_processes import ProcessDeath
from embedded_engine.engine.launch import account
from embedded_engine.engine.logs import cause, redacted, telling

CORE = "(EngineCore pid=7) ERROR 11-20 19:48:12 [core.py:1400] "
API = "(APIServer pid=3) "

PLUGIN_FAILED = [
    CORE + "Failed to load plugin other",
    CORE + "Traceback (most recent call last):",
    CORE + "ModuleNotFoundError: No module named 'other'",
]
CORE_FAILED = [
    CORE + "EngineCore failed to start.",
    CORE + "Traceback (most recent call last):",
    CORE + '  File "cpu_worker.py", line 260, in determine_available_memory',
    CORE + "ValueError: Available memory on node 0 is less than requested",
    "Traceback (most recent call last):",
    "RuntimeError: Engine core initialization failed. See root cause above.",
]
WRONG_VALUE = [
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "  Value error, max_model_len (9) is too great. [type=value_error, input_value=1]",
    "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
]
WRONG_FLAG = [
    "usage: vllm [-h] [-v]",
    "vllm: error: unrecognized arguments: --nonsense=3",
    "nanobind: leaked 3 instances!",
]
STOPPED = ["Traceback (most recent call last):", "KeyboardInterrupt: terminated"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (CORE_FAILED, "ValueError: Available memory on node 0 is less than requested"),
        (PLUGIN_FAILED + CORE_FAILED, "ValueError: Available memory on node 0 is less"),
        (WRONG_VALUE, "max_model_len (9) is too great."),
        (WRONG_FLAG, "unrecognized arguments: --nonsense=3"),
        ([API + "torch.OutOfMemoryError: CUDA out of memory."], "torch.OutOfMemory"),
    ],
    ids=["core failed", "another before", "wrong value", "wrong flag", "out of memory"],
)
def test_the_exception_that_says_most_is_the_cause(
    log: list[str], expected: str
) -> None:
    assert (cause(log) or "").startswith(expected)


@pytest.mark.parametrize("log", [[], STOPPED, ["all is well: no Error"]])
def test_a_log_that_knows_nothing_gives_no_cause(log: list[str]) -> None:
    assert cause(log) is None


def test_what_libraries_mutter_at_the_end_is_not_shown() -> None:
    assert telling(WRONG_FLAG) == WRONG_FLAG[:2]


@pytest.mark.parametrize(
    ("death", "told"),
    [
        (ProcessDeath("core", 7, -9), "EngineCore (pid 7) was killed by SIGKILL"),
        (ProcessDeath("worker", 7, -11), "a worker (pid 7) was killed by SIGSEGV"),
        (ProcessDeath("api", 7, 1), "the API server (pid 7) ended with status 1"),
        (ProcessDeath("core", 7, None), "EngineCore (pid 7) is gone"),
    ],
)
def test_a_death_says_who_and_how(death: ProcessDeath, told: str) -> None:
    assert str(death).startswith(told)


def test_who_was_killed_from_outside_cannot_have_logged_why() -> None:
    assert ProcessDeath("core", 7, -9).from_outside
    assert not ProcessDeath("core", 7, -11).from_outside
    assert not ProcessDeath("core", 7, None).from_outside


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("args: {'api_key': ['abc'], 'seed': 0}", "args: {'api_key': …, 'seed': 0}"),
        ("Namespace(api_key='abc', port=1)", "Namespace(api_key=…, port=1)"),
        ("vllm: error: --api-key=abc --port x", "vllm: error: --api-key=… --port x"),
        ("'authorization': 'Bearer abc'}", "'authorization': …}"),
        ("Authorization: Bearer abc", "Authorization: …"),
        ("HF_TOKEN=hf_abcdefghijkl", "HF_TOKEN=…"),
        ("401 for hf_abcdefghijkl at x", "401 for … at x"),
        ("cannot reach http://me:secret@proxy:1/", "cannot reach http://…@proxy:1/"),
        (
            "Request r details: prompt: 'It\\'s me', n=1",
            "Request r details: prompt: …, n=1",
        ),
        ("prompt: 'cut o", "prompt: …"),
        ("prompt_token_ids: [1, 2], n=1", "prompt_token_ids: …, n=1"),
        ("new_token_ids=[[], [7]]", "new_token_ids=…"),
    ],
)
def test_neither_keys_nor_prompts_of_a_log_come_into_the_record(
    line: str, kept: str
) -> None:
    assert account(ProcessDeath("core", 7, 1), [line]).splitlines()[-1] == kept


@pytest.mark.parametrize(
    "line",
    [
        "max_num_batched_tokens=2048, eos_token_id: 2, total tokens: 7",
        "ValueError: max_tokens (9) is too large; prompt has 5",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_what_is_no_secret_in_a_log_is_told(line: str) -> None:
    assert redacted(line) == line


def test_a_death_is_accounted_for_with_what_lines_say_not_with_their_heads() -> None:
    head = "(APIServer pid=7) ERROR 11-22 07:28:51 [async_llm.py:906]"
    log = [
        f"{head}     outputs = await it()",
        f"{head}      ^^^",
        f"{head} It died",
    ]

    told = account(ProcessDeath("core", 8, -9), log).splitlines()

    assert told[0].startswith("EngineCore (pid 8) was killed by SIGKILL")
    assert told[1:] == ["    outputs = await it()", "It died"]
