"""Flags of ``vllm serve`` as people type them: which value one has."""

from collections.abc import Sequence


def flag_value(flags: Sequence[str], name: str) -> str | None:
    """What a flag is set to, the last time counts; None where it is not.

    >>> flag_value(["--max_num_seqs", "16", "--no-enforce-eager"], "enforce-eager")
    'off'
    """
    found = None
    for at, word in enumerate(flags):
        said, assigned, value = word.partition("=")
        if not said.startswith("--"):
            continue
        after = flags[at + 1] if at + 1 < len(flags) else "--"
        match said[2:].replace("_", "-"):
            case told if told == name and assigned:
                found = value
            case told if told == name:
                found = "on" if after.startswith("-") else after
            case told if told == f"no-{name}":
                found = "off"
    return found
