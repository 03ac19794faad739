"""Parses flags of ``vllm serve``: those to vary, and their present values.

The known flags are read from vLLM's source where it is installed, so that a typo is
reported at once rather than by an engine that does not start. vLLM itself is not
imported, as that takes seconds.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from inferwatch.errors import UsageError
from inferwatch.quantities import count_of
from inferwatch.studies.tune.space import LIVE_FLAGS, UNSET, Variable

HOW = (
    "--vary FLAG=VALUE,VALUE names a flag of `vllm serve` and the values to try, as "
    "--vary max-num-seqs=8,16,32; of a switch, on and off"
)
_FLAG = re.compile(r"[a-z][a-z0-9.-]*[a-z0-9]")
_TYPED = re.compile(r"[\"']--([a-z][a-z0-9-]+)[\"']")
_SOURCES = ("engine/arg_utils.py", "entrypoints/cli/serve.py")
_MORE_SOURCES = "entrypoints/**/cli_args.py"
_ENOUGH = 50
"""With fewer flags the source was not understood, and no flag is refused."""
_YES, _NO = {"on", "true", "yes"}, {"off", "false", "no"}


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """The flags of the installed vLLM."""

    names: frozenset[str] = frozenset()
    """Without dashes; empty if unknown."""
    switches: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    """Flags that take an integer."""

    def refuse(self, flag: str) -> None:
        """Refuse an unknown flag.

        Raises:
            UsageError: the flag is unknown; the message suggests a similar one.
        """
        if not self.names or flag.partition(".")[0] in self.names:
            return
        near = get_close_matches(flag, self.names, n=1, cutoff=0.7)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise UsageError(f"`vllm serve` has no --{flag}{hint}")


@cache
def known_flags() -> KnownFlags:
    spec = find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        return KnownFlags()
    root = Path(places[0])
    paths = [*(root / each for each in _SOURCES), *root.glob(_MORE_SOURCES)]
    return flags_in([path.read_text("utf-8") for path in paths if path.is_file()])


def flags_in(sources: Sequence[str]) -> KnownFlags:
    """The flags that vLLM's source declares; empty if it is not understood."""
    names: set[str] = set()
    kinds: dict[str, str] = {}
    for source in sources:
        names |= set(_TYPED.findall(source))
        kinds |= dict(_fields(source))
    names |= kinds.keys()
    if len(names) < _ENOUGH:
        return KnownFlags()
    return KnownFlags(
        names=frozenset(names),
        switches=frozenset(k for k, v in kinds.items() if v.startswith("bool")),
        whole=frozenset(k for k, v in kinds.items() if v in {"int", "int | None"}),
    )


def _fields(source: str) -> Iterator[tuple[str, str]]:
    """Names and types of the fields from which vLLM makes its flags."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # written for a newer Python
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(
                    each.target, ast.Name
                ):
                    name = each.target.id.replace("_", "-")
                    yield name, ast.unparse(each.annotation)


def refuse_unknown(words: Sequence[str], known: KnownFlags | None = None) -> None:
    """Refuse flags that the installed vLLM does not have, before it is started.

    Raises:
        UsageError: there is one; the message suggests a similar one.
    """
    known = known or known_flags()
    for word in words:
        name = plain_name(word.partition("=")[0]) if word.startswith("--") else ""
        begun = any(each.startswith(name) for each in known.names)
        if name and not begun:  # argparse takes the beginning of a flag
            known.refuse(_switch(name, known)[0])


# Varied flags.


def read_variables(
    texts: Sequence[str], known: KnownFlags | None = None
) -> tuple[Variable, ...]:
    """Parse all ``--vary`` options, in their order.

    Raises:
        UsageError: there are no options, or one is invalid.
    """
    if not texts:
        raise UsageError(f"what is to vary? {HOW}")
    variables = [read_variable(text, known or known_flags()) for text in texts]
    flags = [each.flag for each in variables]
    twice = next((each for each in flags if flags.count(each) > 1), None)
    if twice is not None:
        raise UsageError(
            f"--vary {twice} is given twice: write all its values in one, as "
            f"--vary {twice}=A,B,C"
        )
    return tuple(variables)


def read_variable(text: str, known: KnownFlags) -> Variable:
    """Parse one flag and its values.

    Raises:
        UsageError: the flag or a value is invalid.
    """
    written, equals, listed = text.partition("=")
    flag = plain_name(written)
    if not equals or not _FLAG.fullmatch(flag):
        raise UsageError(f"--vary {text!r} is not a flag with values: {HOW}")
    flag, negated = _switch(flag, known)
    known.refuse(flag)
    typed = [each.strip() for each in _split(listed)]
    if not all(typed):
        raise UsageError(f"--vary {text!r} has an empty value: {HOW}")
    values = [_value(flag, each, known) for each in typed]
    if negated:
        values = [{"on": "off", "off": "on"}.get(each, each) for each in values]
    twice = next((each for each in values if values.count(each) > 1), None)
    if twice is not None:
        raise UsageError(f"--vary {flag} has {twice} twice: give each value once")
    return Variable(flag=flag, values=tuple(values))


def plain_name(written: str) -> str:
    """The name of a flag, without leading dashes and with dashes for underscores.

    >>> plain_name("--max_num_seqs"), plain_name("max-num-seqs ")
    ('max-num-seqs', 'max-num-seqs')
    """
    return written.strip().lstrip("-").replace("_", "-")


def _switch(flag: str, known: KnownFlags) -> tuple[str, bool]:
    """The switch that ``no-…`` negates, and whether it is negated."""
    plain = flag.removeprefix("no-")
    negated = plain != flag and flag not in known.names and plain in known.names
    return (plain, True) if negated else (flag, False)


def _value(flag: str, value: str, known: KnownFlags) -> str:
    """The value as ``vllm serve`` takes it, so that equal values are equal text."""
    if value == UNSET and flag not in LIVE_FLAGS:
        return value
    if flag in known.switches:
        if value.lower() not in _YES | _NO:
            raise UsageError(f"--vary {flag}: {value!r} is neither on nor off")
        return "on" if value.lower() in _YES else "off"
    if flag in LIVE_FLAGS or flag in known.whole:
        return _whole(flag, value)
    return value


def _whole(flag: str, value: str) -> str:
    number = count_of(value)
    if number is None or (flag in LIVE_FLAGS and number < 1):
        raise UsageError(f"--vary {flag}: {value!r} is not a whole number, as 16 or 2k")
    return str(number)


def _split(listed: str) -> Iterator[str]:
    """Split at commas, except within braces, brackets or quotes."""
    depth, quoted, part = 0, False, ""
    for char in listed:
        quoted ^= char == '"'
        if not quoted:
            depth += (char in "{[") - (char in "}]")
        if char == "," and not depth and not quoted:
            yield part
            part = ""
        else:
            part += char
    yield part


# Present values.


def split_present(
    flags: Sequence[str],
    variables: Sequence[Variable],
    known: KnownFlags | None = None,
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Split flags into fixed ones and the present values of varied ones.

    Raises:
        UsageError: a varied flag is given twice, or has an invalid value.
    """
    known = known or known_flags()
    varied = {each.flag for each in variables}
    rest: list[str] = []
    present: dict[str, str] = {}
    words = list(flags)
    while words:
        word = words.pop(0)
        written, equals, value = word.partition("=")
        flag, negated = _switch(plain_name(written), known)
        if not word.startswith("--") or flag not in varied:
            rest.append(word)
            continue
        if flag in present:
            raise UsageError(f"--{flag} is given twice after --")
        if not equals and words and not words[0].startswith("--"):
            value = words.pop(0)
        elif not equals:
            value = "off" if negated else "on"
        present[flag] = _value(flag, value, known)
    return tuple(rest), tuple(present.items())
