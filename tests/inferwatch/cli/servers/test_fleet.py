"""Which servers are meant, and with which keys they are asked."""

from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import Prices
from collectors.probe.keys import add_viewer
from inferwatch.cli.servers.fleet import (
    dcgm_of,
    named_servers,
    place_to_listen,
    prices_of,
    servers_of,
    shown_secrets,
    without_port,
)
from inferwatch.cli.servers.options import ServerOptions
from inferwatch.errors import UsageError

FLEET = """
slo = "ttft_s<1"
every = 5

[[server]]
name = "chat"
url = "https://gpu1.example/chat/v1"
key_env = "CHAT_KEY"

[[server]]
name = "code"
url = "gpu2:8000"
every = 2
slo = "tpot_s<50ms"
headers = { "X-Team" = "infra", "X-Token" = "env:TEAM_TOKEN" }
"""


@pytest.fixture(autouse=True)
def _nobodys_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("INFERWATCH_API_KEY", raising=False)
    monkeypatch.setenv("CHAT_KEY", "sk-chat")
    monkeypatch.setenv("TEAM_TOKEN", "t-1")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, FLEET)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


def test_a_settings_file_names_servers_and_what_they_are_to_hold(config: Path) -> None:
    chat, code = servers_of(ServerOptions(config=config))

    assert (chat.source, chat.url) == ("chat", "https://gpu1.example/chat")
    assert (chat.every_s, chat.slo) == (5, "ttft_s<1")
    assert chat.headers == {"Authorization": "Bearer sk-chat"}
    assert (code.url, code.every_s, code.slo) == (
        "http://gpu2:8000",
        2,
        "tpot_s<0.05",
    )
    assert code.headers == {"X-Team": "infra", "X-Token": "t-1"}


def test_a_server_is_attached_to_by_its_name(config: Path) -> None:
    servers = servers_of(ServerOptions(config=config, urls=["code", "gpu9:1"]))

    assert [each.source for each in servers] == ["code", "gpu9:1"]


def test_the_settings_of_the_user_are_read_without_being_named(tmp_path: Path) -> None:
    home = tmp_path / "config" / "inferwatch"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(FLEET)

    (server,) = servers_of(ServerOptions(urls=["code"]))

    assert server.url == "http://gpu2:8000"
    assert named_servers() == {
        "chat": "https://gpu1.example/chat",
        "code": "http://gpu2:8000",
    }


def test_a_name_that_nobody_has_is_told_with_those_there_are(config: Path) -> None:
    with pytest.raises(UsageError, match=r"no server is called 'caht'.*chat, code"):
        servers_of(ServerOptions(config=config, urls=["caht"]))


def test_the_command_line_wins_over_the_file(config: Path) -> None:
    asked = ServerOptions(
        config=config,
        urls=["chat"],
        header=["Authorization: Bearer env:TEAM_TOKEN"],
        every_s=0.5,
    )

    (server,) = servers_of(asked)

    assert server.headers == {"Authorization": "Bearer t-1"}
    assert server.every_s == 0.5


def test_a_key_comes_from_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    monkeypatch.setenv("INFERWATCH_API_KEY", "sk-ours")

    def key(**options: object) -> str:
        (server,) = servers_of(ServerOptions(urls=["gpu1:80"], **options))  # type: ignore[arg-type]
        ((_, value),) = server.headers.items()
        return value

    assert key() == "Bearer sk-ours"
    assert key(api_key_env="CHAT_KEY") == "Bearer sk-chat"
    assert key(api_key_file=tmp_path / "key") == "Bearer sk-file"
    assert key(header=[f"authorization: Token @{tmp_path / 'key'}"]) == "Token sk-file"


def test_a_key_of_the_url_is_a_header_and_never_shown() -> None:
    (server,) = servers_of(ServerOptions(urls=["https://me:pa%20ss@gpu1.example/x"]))

    assert server.headers == {"Authorization": "Basic bWU6cGEgc3M="}
    assert server.url == server.shown_url == "https://gpu1.example/x"
    assert "pa" not in repr(server)


def test_a_host_that_was_typed_alone_is_told_of() -> None:
    urls = ["gpu1", "gpu2:8000", "http://gpu3", "gpu4/chat", "ssh://gpu5/8000"]
    options = ServerOptions(urls=urls)

    assert without_port(options, servers_of(options)) == ["gpu1"]


def test_a_secret_that_ps_shows_is_warned_of() -> None:
    shown = ServerOptions(urls=["http://u:p@x"], header=["Authorization: Bearer sk-1"])
    kept = ServerOptions(urls=["x"], header=["X-Api-Key: env:K", "X-Team: infra"])

    assert shown_secrets(shown) == ["Authorization", "the URL"]
    assert shown_secrets(kept) == []
    assert "sk-1" not in repr(shown)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slo = 1\n", "line 1: slo must be text in quotes"),
        ("[[server]]\nurl = 'x'\nevry = 2\n", "line 3: there is no 'evry'; there is: "),
        (
            "[[server]]\nurl = 'x'\n[[server]]\nurl = 'y'\nevery = 'soon'\n",
            "line 5: every must be a number",
        ),
        ("[server]\nurl = 'x'\n", "line 1: server must be a list of tables"),
        ("[[server]]\nurl = \n", "at line 2, column 7"),
        (
            "slo='itl_s<1'\n\n[[server]]\nurl = 'ftp://x'\n",
            "line 3: 'ftp://x' is not an addr",
        ),
        ("[[server]]\nurl = 'x'\nslo = 'fast'\n", "line 1: --slo: cannot read 'fast'"),
        (
            "[[server]]\nurl = 'x'\nevery = 0.01\n",
            "line 1: a server is asked every 0.1",
        ),
        ("[[server]]\nurl = 'x'\nkey_env = 'NO_KEY'\n", "NO_KEY, which is not set"),
        ("[[server]]\nurl = 'x'\nca_file = 'no.pem'\n", "line 1: the certificates in"),
        ("[[server]]\nurl = 'x'\n[[server]]\nurl = 'x'\n", "x is there twice"),
        (
            "[[server]]\nurl = 'x'\nheaders = { Authorization = 'Bearer sk-1' }\n",
            "line 1: the header Authorization holds a secret",
        ),
        ("[[server]]\nname = 'empty'\n", "line 1: '' is not an address"),
        ("", "names no"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError) as failed:
        servers_of(ServerOptions(config=written(tmp_path, text)))

    assert said in str(failed.value)
    assert "fleet.toml" in str(failed.value) or "twice" in said
    assert "sk-1" not in str(failed.value)


@pytest.mark.parametrize(
    "line",
    ["no colon", ": empty", "Bad Name: x", "X: a\x01b", "X: ö", "X: env:"],
)
def test_what_cannot_be_sent_is_no_header(line: str) -> None:
    with pytest.raises(UsageError):
        servers_of(ServerOptions(urls=["x:1"], header=[line]))


def test_a_socket_is_a_server_too(tmp_path: Path) -> None:
    (flag,) = servers_of(ServerOptions(uds=tmp_path / "s.sock"))
    (url,) = servers_of(ServerOptions(urls=[f"unix://{tmp_path}/s.sock"]))

    assert flag.uds == url.uds == str(tmp_path / "s.sock")
    assert flag.source == str(tmp_path / "s.sock")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (None, None),
        ("off", ()),
        ("0.0.0.0:4318", ("0.0.0.0", 4318)),
        ("[::1]:9", ("::1", 9)),
        ("gpu1.example:80", ("gpu1.example", 80)),
    ],
)
def test_traces_are_taken_where_people_say(text: str | None, place: object) -> None:
    assert place_to_listen(text) == place


@pytest.mark.parametrize("text", ["", "4318", ":4318", "host:", "host:x", "host:99999"])
def test_what_is_no_place_to_listen_at_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        place_to_listen(text)


def test_a_server_has_its_probe_where_the_file_says(tmp_path: Path) -> None:
    _, key = add_viewer(tmp_path, "alice")
    config = written(
        tmp_path,
        '[[server]]\nurl = "http://gpu1:8000"\nprobe = "tcp://gpu1:9500"\n'
        'probe_key = "alice.key"\n',
    )

    (server,) = servers_of(ServerOptions(config=config))
    assert (server.probe, server.probe_key) == ("tcp://gpu1:9500", key)


def test_a_server_publishes_its_steps_where_people_say(tmp_path: Path) -> None:
    places = ["ipc:///tmp/steps.0", "tcp://gpu1:20380"]
    (typed,) = servers_of(ServerOptions(urls=["gpu1"], steps=places))
    file = written(
        tmp_path, f"[[server]]\nname='chat'\nurl='http://gpu1'\nsteps={places}\n"
    )
    (named,) = servers_of(ServerOptions(urls=["chat"], config=file))

    assert typed.steps == named.steps == tuple(places)


@pytest.mark.parametrize(
    "place", ["", "steps", "ipc://steps", "tcp://gpu1", "tcp://*:20380"]
)
def test_a_place_that_nobody_can_listen_at_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="is not where steps are published"):
        servers_of(ServerOptions(urls=["gpu1"], steps=[place]))


def test_a_server_behind_ssh_is_called_by_its_host() -> None:
    (server,) = servers_of(ServerOptions(urls=["ssh://me@gpu1:22/8001"]))

    assert (server.source, server.url) == ("gpu1:8001", "http://127.0.0.1:8001")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ServerOptions(urls=["a", "b"], probe="one"), "--probe is one server's"),
        (ServerOptions(urls=["a", "b"], steps=["ipc:///a"]), "--steps is one server's"),
        (ServerOptions(urls=["a"], probe="tcp://a"), "tcp://host:port"),
        (ServerOptions(urls=["ssh://a"], probe="one"), "leave out probe"),
        (ServerOptions(urls=["ssh://a:b@c"]), "not an address for ssh"),
        (ServerOptions(urls=["a"], probe_key=Path("/none.key")), "/none.key"),
    ],
)
def test_a_probe_that_cannot_be_is_refused(options: ServerOptions, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        servers_of(options)


@pytest.mark.parametrize("typed", [{"probe": "one"}, {"steps": ["ipc:///a"]}])
def test_what_is_of_one_server_is_not_given_to_all_of_a_file(
    typed: dict[str, Any], tmp_path: Path
) -> None:
    server = '[[server]]\nurl = "gpu{}"\n'
    config = written(tmp_path, server.format(1) + server.format(2))
    with pytest.raises(UsageError, match="is one server's"):
        servers_of(ServerOptions(config=config, **typed))
    config = written(tmp_path, server.format(1))
    assert len(servers_of(ServerOptions(config=config, **typed))) == 1


def test_exporters_stand_in_the_settings_file_unless_others_are_typed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('dcgm = ["gpu1", "http://gpu2:9401"]\n[[server]]\nurl = "gpu1"\n')
    asked = ServerOptions(config=path)

    assert dcgm_of(asked, ()) == ("gpu1", "http://gpu2:9401")
    assert dcgm_of(asked, ("gpu3",)) == ("gpu3",)
    assert dcgm_of(ServerOptions(), ()) == ()

    path.write_text('slo = ""\ndcgm = ["ftp://gpu1"]\n')
    with pytest.raises(UsageError, match=r"line 2: .* is not an address"):
        dcgm_of(asked, ())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu_hour = 2.5", Prices(t_ns=0, gpu_hour=2.5)),
        ('kwh = 0.3\ncurrency = "€"', Prices(t_ns=0, kwh=0.3, currency="€")),
        ("every = 2", None),
    ],
)
def test_prices_stand_in_the_file(
    tmp_path: Path, text: str, found: Prices | None
) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    asked = ServerOptions(config=tmp_path / "fleet.toml")
    typed = Prices(t_ns=0, kwh=9.0)

    assert prices_of(asked, None) == found
    assert prices_of(asked, typed) is typed


@pytest.mark.parametrize(
    "text",
    [
        "gpu_hour = 1\nkwh = 2",
        'currency = "€"',
        "kwh = 0",
        "gpu_hour = -1",
        "kwh = inf",
    ],
)
def test_a_price_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.toml").write_text(text)

    with pytest.raises(UsageError, match="line 1: give one price"):
        prices_of(ServerOptions(config=tmp_path / "fleet.toml"), None)


def test_objectives_of_a_file_may_be_by_class(tmp_path: Path) -> None:
    text = 'slo = "ttft_s<1; chat: ttft_s<0.5; target=0.99"\n[[server]]\nurl = "a:1"'
    (tmp_path / "fleet.toml").write_text(text)

    (server,) = servers_of(ServerOptions(config=tmp_path / "fleet.toml"))

    assert server.slo == "ttft_s<1; chat: ttft_s<0.5; target=0.99"
