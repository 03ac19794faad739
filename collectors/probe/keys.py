"""CURVE keys of a probe reached over the network.

Two private files: the probe's holds its secret key and the public keys of the viewers
it admits, a viewer's holds its secret key and the public key of the probe it trusts.
"""

import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import zmq

from collectors.contract.collector import CollectorError

KEY_LENGTH = 40
"""Length of a CURVE key in printable form (Z85)."""
PROBE_FILE = "probe.key"
HEAD = "# {what} Keep it to yourself: chmod 600.\n"


class KeyFileError(CollectorError):
    """A key file is unusable; the message can be shown to users and holds no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeKeys:
    """The content of a probe's key file."""

    public: str
    secret: str = field(repr=False)
    viewers: dict[str, str] = field(default_factory=dict)
    """Public keys of admitted viewers, by name."""

    @classmethod
    def read(cls, path: Path) -> "ProbeKeys":
        """Read a probe's key file.

        Raises:
            KeyFileError: it is unusable.
        """
        found = _read(path)
        viewers = found.get("viewers", {})
        if not isinstance(viewers, dict) or not all(map(_is_key, viewers.values())):
            raise KeyFileError(f"{path}: [viewers] must give each name a public key")
        return cls(
            public=_key(path, found, "public"),
            secret=_key(path, found, "secret"),
            viewers={str(name): str(key) for name, key in viewers.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerKeys:
    """The content of a viewer's key file."""

    public: str
    secret: str = field(repr=False)
    probe: str
    """Public key of the probe."""

    @classmethod
    def read(cls, path: Path) -> "ViewerKeys":
        """Read a viewer's key file.

        Raises:
            KeyFileError: it is unusable.
        """
        found = _read(path)
        public, secret, probe = (
            _key(path, found, name) for name in ("public", "secret", "probe")
        )
        return cls(public=public, secret=secret, probe=probe)


def add_viewer(directory: Path, name: str) -> tuple[Path, Path]:
    """Create a key file for a viewer and admit it to the probe, whose file may be new.

    Returns the probe's file and the viewer's.

    Raises:
        KeyFileError: the viewer already has a file, or one is unusable.
    """
    if not name.replace("-", "").replace("_", "").isalnum():
        raise KeyFileError(f"{name!r} must be of letters, digits, - and _")
    ours, his = directory / PROBE_FILE, directory / f"{name}.key"
    if his.exists() or ours == his:
        raise KeyFileError(f"{his} is there already")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not ours.exists():
        public, secret = _pair()
        _write(ours, "A probe's key, and whom it lets in.", public, secret)
    probe = ProbeKeys.read(ours)
    if name in probe.viewers:
        raise KeyFileError(f"{ours} lets {name} in already, by another key")
    public, secret = _pair()
    _write(
        his, "A viewer's key to a probe.", public, secret, f'probe = "{probe.public}"'
    )
    text = ours.read_text("utf-8")
    table = "" if "[viewers]" in text else "\n[viewers]\n"
    ours.write_text(f'{text}{table}"{name}" = "{public}"\n', "utf-8")
    return ours, his


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _write(path: Path, what: str, public: str, secret: str, more: str = "") -> None:
    text = f'{HEAD.format(what=what)}public = "{public}"\nsecret = "{secret}"\n{more}\n'
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _read(path: Path) -> dict[str, object]:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise KeyFileError(
                f"{path} can be read by others: chmod 600 {quote(str(path))}"
            )
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} is not a key file of ours") from error


def _key(path: Path, found: dict[str, object], name: str) -> str:
    key = found.get(name)
    if not _is_key(key):
        raise KeyFileError(f"{path} has no {name} key")
    return str(key)


def _is_key(key: object) -> bool:
    return isinstance(key, str) and len(key) == KEY_LENGTH and key.isascii()
