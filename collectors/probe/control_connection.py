"""A connection to a control socket of an engine: requests and answers, line by line."""

import asyncio
import getpass
import os
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from collectors.contract.collector import CollectorError, SourceLostError
from collectors.contract.liveness import peer_uid
from collectors.contract.runtime_dir import socket_dir
from collectors.probe.control import LONGEST_LINE

ANSWER_S = 2.0
"""Time limit for a response, which comes from a thread of its own even in a long
step."""
GONE = "the engine is gone"
HUNG_UP = "the engine hung up: it is gone, or listens only to the user it runs as"
ROOT = 0
MOST_SHOWN = 240
"""Most characters shown of a foreign text."""
Answer = TypeVar("Answer", bound=msgspec.Struct)


class NobodyThereError(SourceLostError):
    """Nobody listens on the control socket."""


class NotOursError(CollectorError):
    """The engine runs as another user, who alone may control it."""


class ControlConnection:
    """The connection to one EngineCore's control socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader, self._writer = reader, writer
        self._broken = self._answered = False

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Connect to a control socket.

        Raises:
            NotOursError: it belongs to another user.
            NobodyThereError: nobody listens.
            CollectorError: the socket is unreachable.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(
                    path, limit=LONGEST_LINE
                )
            # In a directory shared by a group, the socket could be anybody's.
            if os.geteuid() not in (ROOT, peer_uid(writer.get_extra_info("socket"))):
                writer.close()
                raise NotOursError(str(path))
            return cls(reader, writer)
        except PermissionError as error:
            raise NotOursError(str(path)) from error
        except (FileNotFoundError, ConnectionError) as error:
            raise NobodyThereError(GONE) from error
        except TimeoutError as error:
            raise CollectorError(_silent(ANSWER_S)) from error
        except OSError as error:
            raise CollectorError(f"the engine cannot be reached: {error}") from error

    @property
    def is_gone(self) -> bool:
        """Whether the connection can no longer be used."""
        return self._broken or self._reader.at_eof() or self._writer.is_closing()

    def hang_up(self) -> None:
        self._broken = True
        self._writer.close()

    async def ask(
        self,
        request: msgspec.Struct,
        kind: type[Answer],
        within_s: float | None = None,
    ) -> Answer:
        """Send a request and return the response, within ANSWER_S unless told.

        Raises:
            SourceLostError: the engine is gone.
            CollectorError: it does not answer, or not in this protocol.
        """
        within_s = ANSWER_S if within_s is None else within_s
        try:
            async with asyncio.timeout(within_s):
                self._writer.write(msgspec.json.encode(request) + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise ConnectionResetError  # noqa: TRY301 - told below, as one that is
            answer = msgspec.json.decode(line, type=kind)
        except TimeoutError as error:
            self.hang_up()
            raise CollectorError(_silent(within_s)) from error
        except OSError as error:
            self.hang_up()
            raise SourceLostError(GONE if self._answered else HUNG_UP) from error
        except ValueError as error:  # too long, or not an answer
            self.hang_up()
            raise CollectorError("the engine answers what means nothing") from error
        except BaseException:
            self.hang_up()  # or its response would be taken for the next one's
            raise
        self._answered = True
        return answer


def control_sockets(engine_id: str, suffix: str) -> list[Path]:
    """Control sockets of an engine's ranks, stale ones included.

    Raises:
        CollectorError: the directory cannot be read.
    """
    try:
        found = sorted(socket_dir().glob(f"*{suffix}"))
    except OSError as error:
        raise CollectorError(str(error)) from error
    return [path for path in found if path.stem.rpartition(".")[0] == engine_id]


def _silent(within_s: float) -> str:
    return f"the engine does not answer within {within_s:g} s"


def shown(text: str) -> str:
    """Text that others wrote, as one line of limited length."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= MOST_SHOWN else plain[:MOST_SHOWN] + "…"


def this_process() -> str:
    with suppress(KeyError, OSError):  # the user has no name
        return f"{getpass.getuser()} (pid {os.getpid()})"
    return f"pid {os.getpid()}"
