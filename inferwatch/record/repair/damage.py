"""What could be read of a damaged file, and what is lost."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferwatch.formatting import counted
from inferwatch.record.file.location import db_option
from inferwatch.record.file.sqlite import PRIMARY_CODE

TOLD = {"step_members"}
"""Tables whose lost rows are visible in steps without members."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(error: Exception) -> bool:
    """Whether the file's content is at fault, not its environment."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & PRIMARY_CODE in DAMAGED


def rescue_command(path: Path) -> str:
    """The command that saves what can be read of a file."""
    return f"`inferwatch sessions recover NEW.db{db_option(path)}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDamage:
    """The losses of one session in a damaged file."""

    id: str
    readings: int
    """Readings the session had, as far as known."""
    lost: int
    """Readings that could not be read."""
    membersless: int
    """Steps whose members are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The losses of a damaged file by session."""

    path: Path
    sessions: tuple[SessionDamage, ...]
    rows: Mapping[str, int]
    """Rows that could be read, by table."""
    torn: tuple[str, ...]
    """Tables with unreadable pages."""

    @property
    def lost(self) -> int:
        return sum(session.lost for session in self.sessions)

    @property
    def membersless(self) -> int:
        """Number of steps, in all sessions, whose members are lost."""
        return sum(session.membersless for session in self.sessions)

    @property
    def is_loss(self) -> bool:
        """Whether data is lost; otherwise only the file's layout is wrong."""
        return bool(not self.sessions or self.lost or self.membersless or self.torn)

    @property
    def sentence(self) -> str:
        if self.is_loss:
            return f"{self.path} is damaged: {self.losses}. What could be read is shown"
        return (
            f"nothing in {self.path} is lost, but its layout is not as it should be: "
            f"{self.remedy}"
        )

    @property
    def refusal(self) -> str:
        """Why the file is not written to, and what helps."""
        fault = "damaged" if self.is_loss else "not laid out as expected"
        return f"{self.path} is {fault}, and nothing is written to it: {self.remedy}"

    @property
    def remedy(self) -> str:
        """The command to type, and its effect."""
        saved = "what can be read" if self.is_loss else "all of it"
        return f"{rescue_command(self.path)} saves {saved}"

    @property
    def losses(self) -> str:
        """What is lost, without the file's name."""
        if not self.sessions:
            return "no session in it could be read"
        whole = sum(session.readings for session in self.sessions)
        text = f"{self.lost:,} of {whole:,} readings are lost"
        hurt = [each for each in self.sessions if each.lost]
        if hurt:
            some = ", ".join(f"{e.id} {e.lost:,} of {e.readings:,}" for e in hurt[:5])
            text += f" ({some}{', …' if len(hurt) > 5 else ''})"
        if self.membersless:
            text += (
                f"; {counted(self.membersless, 'step')} without their list of requests"
            )
        torn = [each for each in self.torn if not (each in TOLD and self.membersless)]
        if torn and not self.lost:
            text += f"; rows of {', '.join(torn)} could not be read"
        return text

    def losses_of(self, session_id: str) -> str | None:
        """The losses of one session in few words; None if there are none."""
        for each in self.sessions:
            if each.id == session_id and each.lost:
                return f"damaged: {each.lost:,} of {each.readings:,} readings lost"
            if each.id == session_id and each.membersless:
                return (
                    f"damaged: {counted(each.membersless, 'step')} without their "
                    "list of requests"
                )
        return None

    @property
    def facts(self) -> dict[str, object]:
        """The losses as plain data, for JSON."""
        return {
            "readings_lost": self.lost,
            "sessions": {
                each.id: {
                    "readings": each.readings,
                    "lost": each.lost,
                    "steps_without_members": each.membersless,
                }
                for each in self.sessions
            },
            "rows_read": dict(self.rows),
            "torn_tables": list(self.torn),
        }
