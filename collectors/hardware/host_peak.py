"""Remembers this host's measured peaks from one session to the next.

They are filed by CPU model and usable cores, so the file stays correct after a reboot
or when copied to another host.
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
    """The file that holds measured peaks."""
    return platformdirs.user_cache_path("inferwatch", appauthor=False) / FILE


def known_peaks() -> list[MeasuredPeak]:
    """The measured peak of this host, stamped with the current time; empty if none."""
    peak = _kept(peaks_file()).get(_which())
    return [] if peak is None else [msgspec.structs.replace(peak, t_ns=monotonic_ns())]


def keep_peak(peak: MeasuredPeak) -> Path:
    """Store a peak in place of an earlier one.

    Raises:
        OSError: the file cannot be written.
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
