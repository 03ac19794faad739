"""The settings file: servers to watch, by name, and the objectives they should hold.

slo = "ttft_s<1 tpot_s<0.1"
dcgm = ["http://gpu1.example:9400"]

[[server]]
name = "chat"
url = "https://gpu1.example/chat"
key_env = "CHAT_KEY"

[[agent]]
address = "tcp://gpu1.example:9600"
key = "alice.key"
"""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from platformdirs import user_config_path

from inferwatch.errors import UsageError

PLAIN = {
    "float": "a number",
    "int": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "object": "a table",
    "array": "a list of tables, each under [[server]] or [[agent]]",
}
"""TOML types in plain words, by msgspec's names for them."""
WRONG_KIND = re.compile(r"Expected `(?P<wanted>\w+)[^`]*`, got `(?P<given>\w+)`")
UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`")
WHERE = re.compile(
    r"at `\$(?:\.(?P<table>server|agent)\[(?P<index>\d+)\])?(?:\.(?P<key>\w+))?"
)


class ServerEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server, or the defaults for all."""

    key_env: str | None = None
    """The environment variable with its API key."""
    key_file: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Values can be references to secrets: ``env:NAME``, ``@FILE``."""
    ca_file: str | None = None
    insecure: bool | None = None
    every: float | None = None
    slo: str | None = None


class NamedServer(ServerEntry, kw_only=True, forbid_unknown_fields=True):
    """A server in the file."""

    url: str | None = None
    uds: str | None = None
    probe: str | None = None
    probe_key: str | None = None
    steps: list[str] = []
    """Where its ranks publish steps."""
    name: str = ""


class NamedAgent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An agent in the file, which reports the hardware of a host."""

    address: str
    key: str | None = None
    """The file with a viewer's key."""
    name: str = ""
    """The name of its host; empty for the name that it reports."""


class FleetFile(ServerEntry, kw_only=True, forbid_unknown_fields=True):
    """The whole file: defaults for all servers, the servers, and agents."""

    server: list[NamedServer] = []
    agent: list[NamedAgent] = []
    dcgm: list[str] = []
    """URLs of dcgm-exporters."""
    gpu_hour: float | None = None
    """The price of an hour of one GPU; give this or ``kwh``."""
    kwh: float | None = None
    currency: str | None = None


def default_fleet_file() -> Path:
    """Return the path of the user's settings file."""
    return user_config_path("inferwatch", appauthor=False) / "config.toml"


def read_fleet(path: Path) -> FleetFile:
    """Read a settings file.

    Raises:
        UsageError: it cannot be read or parsed; the message has the line.
    """
    try:
        text = path.read_text("utf-8")
        fields = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error
    except ValueError as error:  # no TOML, no UTF-8, an integer too long
        raise UsageError(f"{path}: {error}") from error
    try:
        return msgspec.convert(fields, FleetFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}, {_explained(str(error), text)}") from error


def line_of(
    text: str, index: int | None, key: str | None = None, table: str = "server"
) -> int:
    r"""Return the line of a key: of the server or agent of that index if given.

    >>> line_of("slo = 'x'\n[[server]]\nurl = 'a'\n[[server]]\nurl = 'b'", 1, "url")
    5
    """
    begin, heads, target = 1, Counter[str](), None if index is None else (table, index)
    at: tuple[str, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if head := re.match(r"\[\[\s*(\w+)\s*\]\]", stripped):
            at = head[1], heads[head[1]]
            heads[head[1]] += 1
            begin = number if at == target else begin
        if (
            at == target
            and key
            and re.match(rf"\[?[\w.]*[\"']?\b{re.escape(key)}\b", stripped)
        ):
            return number
    return begin


def _explained(error: str, text: str) -> str:
    """Return msgspec's error with the line of the file, and what would be right."""
    place, unknown = WHERE.search(error), UNKNOWN.search(error)
    wrong = WRONG_KIND.search(error)
    index = place["index"] if place else None
    key = unknown["key"] if unknown else place["key"] if place else None
    table = (place and place["table"]) or "server"
    line = line_of(text, None if index is None else int(index), key, table)
    if unknown:
        of_table: type[Any] = NamedAgent if table == "agent" else NamedServer
        struct: type[Any] = FleetFile if index is None else of_table
        names = ", ".join(struct.__struct_fields__)
        return f"line {line}: there is no {key!r}; there is: {names}"
    if wrong:
        type_name = PLAIN.get(wrong["wanted"], wrong["wanted"])
        return f"line {line}: {key or 'it'} must be {type_name}"
    return f"line {line}: {error}"
