"""What a server said instead of an answer: its status and its error's message."""

from collections.abc import Mapping
from http import HTTPStatus

from inferwatch.loadgen.exchange.call import Call, Failure
from inferwatch.loadgen.exchange.error_message import KEPT_BYTES, error_message, shown


class Refusal:
    """Reads no more of the body than can hold the message, however much comes."""

    def __init__(self) -> None:
        self._beginning = b""

    @property
    def complete(self) -> bool:
        """The rest need not be read."""
        return len(self._beginning) >= KEPT_BYTES

    def read(self, data: bytes) -> None:
        """A piece of the body."""
        self._beginning += data[: KEPT_BYTES - len(self._beginning)]

    def tell(self, call: Call, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Fail the call by its status."""
        said = [str(status), error_message(self._beginning) or _phrase(status)]
        for name in (b"location", b"retry-after"):
            if name in headers:
                value = shown(headers[name].decode("latin-1").partition("?")[0])
                said.append(f"({name.decode()}: {value})")
        kind = f"http_{status // 100}xx" if 300 <= status < 600 else "broken_stream"
        call.fail(Failure(kind), " ".join(part for part in said if part))


def _phrase(status: int) -> str:
    """As the standard has it: the server's own is not needed for what it means."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
