"""Evaluates alarm rules once a second: notes and records one that begins to hold."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import NoteKind
from inferwatch.formatting import counted
from inferwatch.live.alarms.options import AlarmOptions
from inferwatch.live.alarms.rules import Rule, RuleVerdict, rules_of
from inferwatch.live.live_session import LiveSession
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.command import recorded_as
from inferwatch.record.flight.flight_recorder import FlightRecorder
from inferwatch.record.sessions.housekeeping import fitting_name
from inferwatch.record.writing.recorder import Recorder
from inferwatch.visible import visible

# Runs the command of ``--on-alert``, an argument list, without a shell.
#
# The session never waits for it: it has a time limit, and its failures become notes.

PATIENCE_S = 30.0
LAST_PATIENCE_S = 3.0
"""The time limit once the session ends."""
MOST_AT_ONCE = 8
MOST_SAID = 200
"""The last characters of its standard error that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The facts about a rule that began to hold, for the alert command."""

    rule: str
    """The rule as the user wrote it."""
    sentence: str
    session: str
    """The session's id in the record; empty when nothing is recorded."""
    time: str
    """ISO 8601, with the UTC offset."""
    session_s: float
    """Seconds from the start of that session."""

    def environment(self) -> dict[str, str]:
        return {
            "INFERWATCH_ALERT_RULE": self.rule,
            "INFERWATCH_ALERT_SENTENCE": self.sentence,
            "INFERWATCH_ALERT_SESSION": self.session,
            "INFERWATCH_ALERT_SESSION_S": str(self.session_s),
            "INFERWATCH_ALERT_TIME": self.time,
        }

    def json(self) -> bytes:
        """Return the alert as one line of JSON, for the command's standard input."""
        return msgspec.json.encode(asdict(self)) + b"\n"


class OnAlert:
    """Runs a command for each alert, a few at a time."""

    def __init__(
        self,
        command: Sequence[str],
        trouble: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``trouble`` is called with what went wrong."""
        self._command = command
        self._trouble = trouble
        self._patience_s = patience_s
        self._running: set[asyncio.Task[None]] = set()

    def run(self, alert: Alert) -> None:
        """Start the command in the background."""
        if len(self._running) >= MOST_AT_ONCE:
            self._say(f"was not run: {MOST_AT_ONCE} of it still run")
            return
        task = asyncio.create_task(self._run(alert))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Let running commands finish for a moment, then kill them."""
        if self._running:
            await asyncio.wait(self._running, timeout=LAST_PATIENCE_S)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, alert: Alert) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **alert.environment()},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._say(f"did not start: {error}")
            return
        try:
            async with asyncio.timeout(self._patience_s):
                stderr = await _communicate(process, alert.json())
        except TimeoutError:
            self._say(f"took longer than {self._patience_s:.0f} s and was ended")
        else:
            if process.returncode:
                self._say(f"ended with status {process.returncode}{_last(stderr)}")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def _say(self, what: str) -> None:
        self._trouble(f"the command of --on-alert {what}")


async def _communicate(process: asyncio.subprocess.Process, facts: bytes) -> bytes:
    """Write the alert to the command, wait for it, return the end of its stderr."""
    if process.stdin is None or process.stderr is None:
        raise ValueError("it has no pipes")
    with suppress(OSError):  # the command need not read it
        process.stdin.write(facts)
        await process.stdin.drain()
        process.stdin.close()
    stderr = b""
    while more := await process.stderr.read(4096):
        stderr = (stderr + more)[-MOST_SAID:]
    await process.wait()
    return stderr


def _last(stderr: bytes) -> str:
    text = visible(" ".join(stderr.decode(errors="replace").split()))
    return f": {text}" if text else ""


LOOK_S = 1.0
CALM = 10
"""How many evaluations in a row a rule must not hold before it can fire again."""
ID_WAIT_S = 2.0
"""How long to wait for the id of a session that has just begun."""


def watched_rules(options: AlarmOptions) -> "list[WatchedRule]":
    """Return the rules of both options, each once.

    Raises:
        UsageError: a rule cannot be parsed.
    """
    recording = rules_of(options.record_on) if options.record_on is not None else []
    alerting = rules_of(options.alert) if options.alert is not None else []
    texts = {each.text for each in recording}
    alerting = [each for each in alerting if each.text not in texts]
    return [
        *(WatchedRule(each, records=True) for each in recording),
        *(WatchedRule(each, records=False) for each in alerting),
    ]


@dataclass(slots=True)
class WatchedRule:
    """An alarm rule, with its state and its counters."""

    rule: Rule
    records: bool
    holds: bool = False
    """Whether it counted as holding at the last evaluation."""
    judged: int = 0
    """Evaluations at which it was known whether it holds."""
    why_unknown: str = ""
    alerts: int = 0
    silent: int = 0
    """How often it fired without an alert since the last alert."""
    last_alert_ns: int | None = None
    last_held_ns: int | None = None
    _held_count: int = 0
    _calm_count: int = 0

    def look(self, now: Snapshot) -> RuleVerdict | None:
        """Evaluate the rule; return the judgement if it begins to hold now."""
        judged = self.rule.look(now)
        if judged.holds is None:
            self.why_unknown = judged.why_unknown
        else:
            self.judged += 1
        self._held_count = self._held_count + 1 if judged.holds else 0
        self._calm_count = 0 if judged.holds else self._calm_count + 1
        if judged.holds and (self.holds or self._held_count >= self.rule.SETTLES):
            self.last_held_ns = now.now_ns
        if self.holds:
            self.holds = self._calm_count < CALM
            return None
        if self._held_count < self.rule.SETTLES:
            return None
        self.holds = True
        return judged

    def begin_anew(self) -> None:
        """Let the rule fire again at once, as the recording that it began has ended."""
        self.holds, self._held_count = False, 0

    def may_tell(self, now_ns: int, every_ns: int) -> bool:
        """Return whether an alert is due; if not, count it as one that was not sent."""
        if self.last_alert_ns is not None and now_ns - self.last_alert_ns < every_ns:
            self.silent += 1
            return False
        self.last_alert_ns, self.alerts = now_ns, self.alerts + 1
        return True


@dataclass
class Alarms:
    """The alarm rules of a session, and their actions: notes, recordings, a command."""

    session: LiveSession
    options: AlarmOptions
    recorder: FlightRecorder | None
    """Records when a rule holds; None when everything is recorded, or nothing."""
    name: str | None = None
    """The start of the names of recorded sessions; None for the rule alone."""
    rules: list[WatchedRule] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Parse the rules.

        Raises:
            UsageError: one cannot be parsed.
        """
        self.rules = watched_rules(self.options)
        command = self.options.on_alert
        self._on_alert = OnAlert(command, self._note) if command else None
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Evaluate the rules until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            recorder = self.look(self.session.snapshot(Window.MINUTE))
            if recorder is not None:
                await asyncio.to_thread(recorder.close)

    async def close(self) -> None:
        """Wait for alerts that are being sent, then close their command."""
        if self._telling:
            await asyncio.wait(self._telling)
        if self._on_alert is not None:
            await self._on_alert.close()

    def look(self, now: Snapshot) -> Recorder | None:
        """Evaluate all rules and act on them; return a recorder to close, if any."""
        for each in () if now.catching_up else self.rules:
            judged = each.look(now)
            if judged is not None:
                self._begins(each, judged, now.now_ns)
        return self._rest(now.now_ns)

    def _begins(self, rule: WatchedRule, judged: RuleVerdict, now_ns: int) -> None:
        flight = self.recorder if rule.records else None
        if flight is not None and not flight.recording:
            name = self._session_name(rule.rule.text, now_ns)
            flight.begin(name, judged.sentence, now_ns)
        if not rule.may_tell(now_ns, round(self.options.alert_every_s * NS_PER_S)):
            return
        silent, rule.silent = rule.silent, 0
        more = f" ({counted(silent, 'time')} more before)" if silent else ""
        self._note(f"{rule.rule.text}: {judged.sentence}{more}")
        if self._on_alert is not None:
            telling = asyncio.create_task(
                self._tell(self._on_alert, rule.rule.text, judged.sentence, now_ns)
            )
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def _rest(self, now_ns: int) -> Recorder | None:
        flight = self.recorder
        if flight is None or not flight.recording:
            return None
        held_ns = [each.last_held_ns for each in self.rules if each.records]
        last_ns = max(each for each in held_ns if each is not None)
        if now_ns - last_ns < round(self.options.record_after_s * NS_PER_S):
            return None
        name = flight.session_id
        self._note(
            f"no rule has held for {self.options.record_after_s:.0f} s: {name} ends"
        )
        for each in self.rules:
            each.begin_anew()
        return flight.rest()

    async def _tell(
        self, on_alert: OnAlert, rule: str, sentence: str, now_ns: int
    ) -> None:
        """Run the alert command, once a session that is being recorded has its id."""
        session, into_ns = await self._session_id(), now_ns
        flight = self.recorder
        if flight is not None and flight.recording:
            into_ns -= flight.zero_ns
        on_alert.run(
            Alert(
                rule=rule,
                sentence=sentence,
                session=session,
                time=self._wall(now_ns).isoformat(timespec="milliseconds"),
                session_s=round(into_ns / NS_PER_S, 3),
            )
        )

    async def _session_id(self) -> str:
        pipeline = self.session.pipeline
        for _ in range(round(ID_WAIT_S / 0.05)):
            record = pipeline.record
            waits = self.recorder is not None and self.recorder.recording
            if not waits or (record and record.session_id):
                break
            await asyncio.sleep(0.05)
        record = pipeline.record
        return record.session_id if record else ""

    def _session_name(self, rule: str, now_ns: int) -> str:
        text = f"{rule} {self._wall(now_ns):%H:%M:%S}"
        return fitting_name(f"{self.name} {text}" if self.name else text) or text

    def _wall(self, t_ns: int) -> datetime:
        wall_ns = self.session.anchors.wall_ns(t_ns + self.session.clock.start_ns)
        return datetime.fromtimestamp(wall_ns / NS_PER_S).astimezone()

    def _note(self, text: str) -> None:
        self.session.note(NoteKind.ALERT, text)

    def farewell(self) -> list[str]:
        """Return what to print at the end: what was recorded, or why nothing was."""
        lines = [
            f"{each.rule.text} could not be judged: {each.why_unknown}"
            for each in self.rules
            if not each.judged and each.why_unknown
        ]
        flight = self.recorder
        if flight is None:
            return lines
        if not flight.sessions:
            nothing = "nothing happened that --record-on names; nothing was recorded"
            return [nothing, *lines]
        return [
            *(recorded_as(each, flight.path) for each in flight.sessions),
            *lines,
        ]
