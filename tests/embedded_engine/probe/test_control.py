"""Who may turn an engine's limits, when and how far; and who is hung up on."""

import os
import random
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import NS_PER_S
from collectors.contract.liveness import peer_uid
from collectors.probe.control import (
    LONGEST_LINE,
    LimitAction,
    LimitAnswer,
    LimitRequest,
)
from embedded_engine.probe.control import control_socket
from embedded_engine.probe.control.control_desk import ControlDesk
from embedded_engine.probe.control.control_socket import MOST_CALLERS, ControlSocket
from embedded_engine.probe.control.live_limits import TOKENS
from tests.embedded_engine.limit_bench import Bench, Scheduler, as_vllms

GET = LimitRequest(action=LimitAction.GET)
RESET = LimitRequest(action=LimitAction.RESET)


@pytest.fixture(autouse=True)
def _scheduler() -> Iterator[None]:
    with as_vllms():
        yield


def change(version: int | None, **values: Any) -> LimitRequest:
    return LimitRequest(action=LimitAction.SET, version=version, **values)


class Office:
    """A desk and its clock."""

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.now_s = 100.0
        self.bench = Bench(scheduler)
        self.desk = ControlDesk(
            self.bench.limits, now_ns=lambda: int(self.now_s * NS_PER_S)
        )

    def ask(self, request: LimitRequest, caller: str = "me") -> str | None:
        """Why not."""
        return self.desk.answer(request, caller).refused

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.desk.look()

    @property
    def seqs(self) -> int:
        return self.bench.limits.wanted.max_num_seqs


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"max_num_seqs": 33}, "max_num_seqs 33 is above 32"),
        ({"max_num_seqs": 0}, "below 1"),
        ({"max_num_seqs": -1}, "below 1"),
        ({"max_num_batched_tokens": 513}, "above 512"),
        ({"max_num_batched_tokens": 0}, "below 1"),
    ],
)
def test_what_is_out_of_range_is_refused(
    office: Office, values: dict[str, int], why: str
) -> None:
    assert why in (office.ask(change(0, **values)) or "")
    assert office.bench.hook.before is None


def test_a_fixed_limit_is_refused_with_its_reason_and_the_other_is_not() -> None:
    office = Office(Scheduler(has_mamba_layers=True))
    why = office.bench.limits.wanted.fixed[TOKENS]

    assert why in (office.ask(change(0, max_num_batched_tokens=64)) or "")
    assert office.ask(change(0, max_num_seqs=8, max_num_batched_tokens=512)) is None


def test_a_change_of_other_limits_than_these_is_refused(office: Office) -> None:
    assert office.ask(change(0, max_num_seqs=8)) is None
    office.passes(5)

    assert "look again" in (office.ask(change(0, max_num_seqs=16)) or "")
    assert "which version" in (office.ask(change(None, max_num_seqs=16)) or "")
    assert office.seqs == 8


def test_one_change_in_two_seconds_but_a_reset_at_once(office: Office) -> None:
    assert office.ask(change(0, max_num_seqs=8)) is None
    office.passes(0.5)
    assert office.ask(change(1, max_num_seqs=9)) == "wait 1.5 s"

    assert office.ask(RESET) is None
    assert office.seqs == 32
    assert office.ask(change(2, max_num_seqs=9)) == "wait 2.0 s"
    office.passes(2)
    assert office.ask(change(2, max_num_seqs=9)) is None


def test_when_the_watcher_goes_the_start_up_values_return(office: Office) -> None:
    office.ask(change(0, max_num_seqs=8, by="ann"))
    office.desk.left("me")

    office.passes(9.9)
    assert office.seqs == 8
    office.passes(0.2)

    now = office.bench.limits.wanted
    assert (now.max_num_seqs, now.change, now.by) == (32, "watcher gone", "ann")
    assert office.desk.due_in_s is None


def test_who_only_looked_may_come_and_go(office: Office) -> None:
    office.ask(change(0, max_num_seqs=8))
    office.ask(GET, "other")
    office.desk.left("other")

    office.passes(60)

    assert office.seqs == 8


def test_whoever_sets_next_is_the_watcher(office: Office) -> None:
    office.ask(change(0, max_num_seqs=8), "first")
    office.desk.left("first")
    office.passes(5)
    office.ask(change(1, max_num_seqs=8), "second")

    office.passes(60)
    assert office.seqs == 8
    office.desk.left("second")
    office.passes(11)
    assert office.seqs == 32


def test_the_first_of_two_watchers_goes_unnoticed(office: Office) -> None:
    office.ask(change(0, max_num_seqs=8), "first")
    office.passes(5)
    office.ask(change(1, max_num_seqs=16), "second")
    office.desk.left("first")

    office.passes(60)

    assert office.seqs == 16


def test_what_is_to_stay_stays_until_somebody_resets_it(office: Office) -> None:
    office.ask(change(0, max_num_seqs=8, keep=True))
    office.desk.left("me")
    office.passes(3_600)
    assert office.seqs == 8
    assert office.bench.limits.wanted.kept

    assert office.ask(RESET, "other") is None
    assert office.seqs == 32
    assert not office.bench.limits.wanted.kept


def test_a_reset_of_nothing_is_no_change(office: Office) -> None:
    assert office.ask(RESET) is None
    assert office.bench.limits.wanted.version == 0


def test_who_asks_is_told_in_one_short_line(office: Office) -> None:
    office.ask(change(0, max_num_seqs=8, by="a\x1b[31m\n" + "b" * 5_000))

    by = office.bench.limits.wanted.by or ""
    assert by.startswith("a [31m b")
    assert len(by) == 64


def test_a_probe_that_is_off_refuses_all_but_a_look(office: Office) -> None:
    office.bench.fuse.blow("too dear" * 1_000)

    assert "too dear" in (office.ask(change(0, max_num_seqs=8)) or "")
    answer = office.desk.answer(GET, "me")
    assert answer.refused is None
    assert len(msgspec.json.encode(office.desk.answer(RESET, "me"))) < LONGEST_LINE


class Client:
    """Somebody at the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._lines = self.socket.makefile("rb")

    def says(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, request: LimitRequest) -> LimitAnswer:
        self.says(msgspec.json.encode(request) + b"\n")
        return self.hears()

    def hears(self) -> LimitAnswer:
        return msgspec.json.decode(self._lines.readline(), type=LimitAnswer)

    @property
    def is_hung_up_on(self) -> bool:
        """It is told nothing more."""
        try:
            return not self._lines.readline()
        except ConnectionError:
            return True

    def goes(self) -> None:
        self._lines.close()
        self.socket.close()


class Place:
    """A socket with everything behind it."""

    def __init__(self, path: Path, uid: Callable[[Any], int] | None = None) -> None:
        self.office = SimpleNamespace(bench=Bench())
        self.broken: list[str] = []
        desk = ControlDesk(self.office.bench.limits, between_s=0, gone_s=0.05)
        uid = uid or peer_uid
        self.control = ControlSocket(path, desk, self.broken.append, uid)
        self.clients: list[Client] = []

    def end(self) -> None:
        for client in self.clients:
            client.goes()
        self.control.close()

    def client(self) -> Client:
        self.clients.append(Client(self.control.path))
        return self.clients[-1]

    @property
    def limits(self) -> Any:
        return self.office.bench.limits


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "e.1.ctl")
    made.control.open()
    yield made
    made.end()
    assert made.broken == []


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_are_answered_in_their_order(place: Place) -> None:
    client = place.client()
    asked = [GET, change(0, max_num_seqs=8, by="ann"), RESET, change(7)]
    client.says(b"".join(msgspec.json.encode(each) + b"\n" for each in asked))

    answers = [client.hears() for _ in asked]

    assert [each.limits.version for each in answers] == [0, 1, 2, 2]
    assert [each.refused is None for each in answers] == [True, True, True, False]
    assert answers[1].limits.by == "ann"


def test_only_its_owner_can_open_it(place: Place, tmp_path: Path) -> None:
    mode = stat.S_IMODE(place.control.path.stat().st_mode)

    assert mode == 0o600


def test_nobody_can_connect_before_it_has_that_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born: list[int] = []
    mode_of = control_socket.mode_of

    def seen(path: Path) -> int:
        born.append(mode_of(path))
        with pytest.raises(ConnectionRefusedError):
            Client(path)
        return born[0]

    monkeypatch.setattr(control_socket, "mode_of", seen)
    made = Place(tmp_path / "e.1.ctl")
    made.control.open()
    made.end()

    assert born == [0o600]


def test_a_socket_that_others_could_open_is_not_listened_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "mode_of", lambda _: 0o660)
    made = Place(tmp_path / "e.1.ctl")

    with pytest.raises(PermissionError):
        made.control.open()

    with pytest.raises(OSError, match=r"refused|No such"):
        Client(made.control.path)


def test_another_user_is_hung_up_on(tmp_path: Path) -> None:
    made = Place(tmp_path / "e.1.ctl", uid=lambda _: os.geteuid() + 1)
    made.control.open()
    client = made.client()

    assert client.is_hung_up_on
    made.end()
    assert made.limits.wanted.version == 1  # only that it is closed


def test_the_kernel_says_who_we_are() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.geteuid()


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b'{"action": "set", "max_num_seqs": "8"}\n',
        b'{"action": "set", "max_num_seqs": true}\n',
        b'{"action": "burn"}\n',
        b"[" * 4_000 + b"\n",
        b"\xff\x00\xfe\n",
        b'{"action": "get", "by": "\xff"}\n',
        b'{"action": "get", "by": "\\ud800"}\n',
        b'{"action": "get", "x": ' + b"[" * 4_000 + b"\n",
        b"x" * (LONGEST_LINE + 1),
        b" " * LONGEST_LINE + b'{"action": "get"}\n',
        b'{"action": "set", "version": 0, "max_num_seqs": 1e99}\n',
    ],
    ids=range(13),
)
def test_whoever_says_what_means_nothing_is_hung_up_on(
    place: Place, said: bytes
) -> None:
    client = place.client()
    client.says(said)

    assert client.is_hung_up_on
    assert place.client().ask(GET).limits.version == 0


def test_no_line_ends_it(place: Place) -> None:
    draw = random.Random(3)
    whole = b'{"action":"set","version":0,"max_num_seqs":9,"by":"me"}'
    outcomes: set[bool] = set()
    for _ in range(50):
        said = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            said[draw.randrange(len(said))] = draw.randrange(256)
        client = place.client()
        client.says(bytes(said) + b"\n")
        outcomes.add(client.is_hung_up_on)  # or answered
        client.goes()

    assert outcomes == {True, False}
    assert place.client().ask(GET).refused is None


def test_the_answer_to_an_enormous_number_is_a_line_of_a_fair_length(
    place: Place,
) -> None:
    client = place.client()
    client.says(b'{"action":"set","version":0,"max_num_seqs":' + b"9" * 4_000 + b"}\n")

    answer = client.hears()
    assert len(msgspec.json.encode(answer)) < LONGEST_LINE
    assert (answer.refused or "").startswith("max_num_seqs 99")


def test_a_caller_however_busy_gets_an_answer_a_turn(place: Place) -> None:
    busy = place.client()
    began = time.monotonic()
    busy.says((msgspec.json.encode(GET) + b"\n") * 25)
    for _ in range(25):
        busy.hears()

    assert time.monotonic() - began > 24 * control_socket.TURN_S


def test_a_half_line_holds_nobody_up(place: Place) -> None:
    slow = place.client()
    slow.says(b'{"action": ')

    assert place.client().ask(GET).refused is None
    slow.says(b'"get"}\n')
    assert slow.hears().limits.version == 0


def test_who_never_reads_is_dropped_and_holds_nobody_up(place: Place) -> None:
    deaf = place.client()
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    deaf.socket.settimeout(0.2)
    line = msgspec.json.encode(GET) + b"\n"
    with pytest.raises(OSError, match=r"timed out|reset|pipe"):
        deaf.says(line * 200_000)  # once its answers are full, so are its lines

    assert place.client().ask(GET).refused is None


def test_the_oldest_of_too_many_goes_and_the_watcher_stays(place: Place) -> None:
    watcher = place.client()
    watcher.ask(change(0, max_num_seqs=8))
    others = []
    for _ in range(3 * MOST_CALLERS):
        others.append(place.client())
        others[-1].ask(GET)

    assert others[0].is_hung_up_on
    assert watcher.ask(GET).limits.max_num_seqs == 8
    assert len(place.control._callers) == MOST_CALLERS


def test_thousands_of_connections_leave_it_as_it_was(place: Place) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2_000):
        caller = socket.socket(socket.AF_UNIX)
        caller.setblocking(False)
        caller.connect_ex(str(place.control.path))
        caller.close()

    def answered() -> bool:
        with suppress(BlockingIOError):  # those before us still queue
            return place.client().ask(GET).refused is None
        return False

    until(answered)
    until(lambda: len(place.control._callers) <= 1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 4


def test_the_watchers_end_is_noticed(place: Place) -> None:
    watcher, other = place.client(), place.client()
    watcher.ask(change(0, max_num_seqs=8))
    watcher.goes()

    until(lambda: place.limits.wanted.change == "watcher gone")

    assert other.ask(GET).limits.max_num_seqs == 32


def test_who_asks_and_goes_without_an_answer_is_a_watcher_that_went(
    place: Place,
) -> None:
    watcher = place.client()
    watcher.says(msgspec.json.encode(change(0, max_num_seqs=8)) + b"\n")
    watcher.goes()

    until(lambda: place.limits.wanted.version == 2)

    assert place.limits.wanted.change == "watcher gone"


def test_it_leaves_no_file_and_no_thread_and_the_limits_as_at_start(
    tmp_path: Path,
) -> None:
    made = Place(tmp_path / "e.1.ctl")
    made.control.open()
    made.client().ask(change(0, max_num_seqs=8))
    made.office.bench.step()
    made.end()

    assert list(tmp_path.iterdir()) == []
    assert made.office.bench.step() == (32, 512)
    names = [thread.name for thread in threading.enumerate()]
    assert control_socket.THREAD_NAME not in names


def test_if_it_breaks_the_start_up_values_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Place(tmp_path / "e.1.ctl")
    made.control.open()
    client = made.client()
    client.ask(change(0, max_num_seqs=8))
    assert made.office.bench.step() == (8, 512)
    monkeypatch.setattr(made.control.desk, "look", lambda: 1 / 0)
    client.says(b"\n")

    assert client.is_hung_up_on
    until(lambda: bool(made.broken))
    made.end()
    assert made.office.bench.step() == (32, 512)
    assert "ZeroDivisionError" in made.broken[0]


def test_it_sleeps_while_nobody_asks(place: Place) -> None:
    client = place.client()
    client.ask(change(0, max_num_seqs=8))
    time.sleep(0.1)
    native = place.control._thread.native_id
    schedstat = Path(f"/proc/self/task/{native}/schedstat")
    before = schedstat.read_text("ascii").split()[2]

    time.sleep(0.5)

    assert schedstat.read_text("ascii").split()[2] == before


@pytest.mark.process
def test_a_child_lets_go_of_the_socket_and_removes_nothing(place: Place) -> None:
    watcher = place.client()
    watcher.ask(change(0, max_num_seqs=8))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        place.control.let_go()
        os.write(write, b"x")
        time.sleep(30)
        os._exit(0)
    os.read(read, 1)
    try:
        assert watcher.ask(GET).limits.max_num_seqs == 8
        place.control.close()
        assert watcher.is_hung_up_on
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
