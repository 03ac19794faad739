"""What a server said instead of an answer: its status and the beginning of its body."""

from collections.abc import Mapping

from inferwatch.loadgen.call import Call, Failure
from inferwatch.loadgen.reply import DETAIL_CHARS


class Refusal:
    """Keeps no more of the body than is shown, however much comes."""

    def __init__(self) -> None:
        self._beginning = b""

    @property
    def complete(self) -> bool:
        """The rest need not be read."""
        return len(self._beginning) >= DETAIL_CHARS

    def read(self, data: bytes) -> None:
        """A piece of the body."""
        self._beginning += data[:DETAIL_CHARS]

    def tell(self, call: Call, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Fail the call by its status."""
        said = [str(status), self._beginning[:DETAIL_CHARS].decode("utf-8", "replace")]
        for name in (b"location", b"retry-after"):
            if name in headers:
                value = headers[name].decode("latin-1")
                said.append(f"({name.decode()}: {value})")
        kind = f"http_{status // 100}xx" if 300 <= status < 600 else "broken_stream"
        call.fail(Failure(kind), " ".join(part for part in said if part))
