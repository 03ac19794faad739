"""What this host was measured to do, remembered from one session to the next.

Kept by the model of its processor and the cores that we may use: neither a reboot nor
a copy of the file to another host changes what is true of those.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec
import platformdirs

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import MeasuredPeak
from collectors.hardware.host import cpu_name, usable_cores

FILE = "measured-peaks.json"
FILES = msgspec.json.Decoder(dict[str, MeasuredPeak])


def peaks_file() -> Path:
    """Where it stands."""
    return platformdirs.user_cache_path("inferwatch", appauthor=False) / FILE


def known_peaks() -> list[MeasuredPeak]:
    """Of this host, as of now in raw monotonic time; none where it was not measured."""
    peak = _kept(peaks_file()).get(_which())
    return [] if peak is None else [msgspec.structs.replace(peak, t_ns=monotonic_ns())]


def keep_peak(peak: MeasuredPeak) -> Path:
    """Remember it in place of what was measured before.

    Raises:
        OSError: it cannot be written.
    """
    path = peaks_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = _kept(path) | {_which(): peak}
    unfinished = path.with_name(f"{FILE}.{os.getpid()}")
    unfinished.write_bytes(msgspec.json.encode(kept))
    unfinished.replace(path)
    return path


def _kept(path: Path) -> dict[str, MeasuredPeak]:
    with suppress(OSError, msgspec.MsgspecError):
        return FILES.decode(path.read_bytes())
    return {}


def _which() -> str:
    return f"{cpu_name() or '?'}, {usable_cores():g} cores"
