"""Keys as footer, help and command palette tell of them, all from the bindings."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static
from textual.widgets._footer import FooterKey

from inferwatch.metrics.series.window import Window
from inferwatch.ui.app import SCREENS, InferwatchApp
from inferwatch.ui.frame.playback_control import PLAYBACK_BINDINGS
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.kit.dialogs import ConfirmScreen, PromptScreen
from inferwatch.ui.kit.keys import KeyFooter, KeyPalette, active_keys, signposts_of
from inferwatch.ui.knobs.dialog import KnobScreen
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.widgets.help_drawer import HelpDrawer


def footer(app: App[Any]) -> Sequence[str]:
    keys = app.screen.query(FooterKey)
    return [f"{each.key_display} {each.description}" for each in keys if each.display]


@pytest.mark.parametrize(
    "widths",
    [
        pytest.param((120, 60), id="two widths"),
        pytest.param((200, 80, 40), id="others", marks=pytest.mark.soak),
    ],
)
async def test_a_footer_cuts_no_key_and_always_names_help_and_the_way_out(
    watched_feed: Any, settle: Any, widths: tuple[int, ...]
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(100, 24)) as pilot:
        await settle(pilot)
        for screen in ("1", "2", "3", "4", "7", "8"):
            await pilot.press(screen)
            for width in widths:
                await pilot.resize_terminal(width, 24)
                await settle(pilot)
                shown = footer(app)

                assert len(" ".join(shown)) <= width, (screen, width)
                assert shown[-2:] == ["? help", "q quit"], (screen, width)
                if (screen, width) == ("2", 60):  # what it does itself stays
                    assert shown[:3] == ["enter open", "s sort", "/ filter"]

            for each in app.screen.query(FooterKey):
                assert each.tooltip, (screen, each.description)  # on hover


async def test_a_footer_fills_when_the_terminal_grows_and_can_be_clicked(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=(40, 24)) as pilot:
        await settle(pilot)
        narrow = footer(app)
        await pilot.resize_terminal(120, 24)
        await settle(pilot)
        assert set(narrow) < set(footer(app))

        key = next(each for each in app.screen.query(FooterKey) if each.key == "w")
        await pilot.click(key)
        await settle(pilot)
        assert app.session.view.window is Window.FIVE_MINUTES

        await pilot.press("2", "slash")
        await settle(pilot)
        # Keys that are typed into a field are not named.
        shown = [each for each in footer(app) if each != "ctrl+p commands"]
        assert shown == ["tab complete", "enter keep", "esc clear"]


async def test_a_dialog_says_which_keys_it_takes_and_can_be_saved_as_a_picture(
    app: InferwatchApp, settle: Any, tmp_path: Path
) -> None:
    dialogs: Any = (
        (ConfirmScreen("Stop?", "", "Stop it"), ["y yes", "n no"]),
        (PromptScreen("Go", "", lambda _: None), ["enter confirm", "esc close"]),
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for dialog, said in dialogs:
            await app.push_screen(dialog)
            await pilot.pause()
            await pilot.pause()
            assert app.screen is dialog
            assert app.screen.query(KeyFooter)
            assert footer(app) == said

            assert not list(tmp_path.rglob("*.svg"))
            await pilot.press(*["ctrl+s"] * isinstance(dialog, PromptScreen), "escape")
            await pilot.pause()
        assert list(tmp_path.rglob("*.svg"))


async def palette(pilot: Pilot[None], typed: str = "") -> Sequence[str]:
    """What the palette lists for these words."""
    await pilot.press("ctrl+p")
    await pilot.pause()
    pilot.app.screen.query_one(Input).value = typed
    await pilot.pause(0.2)
    listed = pilot.app.screen.query_one(OptionList)
    return [str(each.prompt) for each in listed.options]


async def test_the_palette_has_every_action_and_screen_once(
    watched_feed: Any, settle: Any
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot)
        keys = [each for each in active_keys(app.screen) if each.name and each.tells]
        listed = await palette(pilot)

        actions = {each.binding.action for each in keys}
        posts = signposts_of(app.screen_stack[-2])
        assert [each.name for each in posts] == ["tune", "baseline"]
        assert len(listed) == len(set(listed))
        assert len(listed) == len(actions) - 1 + len(posts)  # not itself
        text = "\n".join(listed)
        assert "2  Requests: Why was this one slow?" in text
        assert "space  pause: Pause the view" in text
        assert "play:" not in text
        assert "restart" not in text


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("settings · ", ["i  settings · what if", "knobs", "tune"]),
        ("against", ["a  against", "C  against · compare", "baseline"]),
    ],
)
async def test_ways_to_the_same_stand_together_in_the_palette(
    watched_feed: Any, settle: Any, typed: str, names: list[str]
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot)
        listed = await palette(pilot, typed)

    assert len(listed) == len(names)
    for name in names:
        assert sum(f"{name}:" in each for each in listed) == 1, listed


async def test_a_signpost_leads_on(
    watched_feed: Any, settle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    copied: list[str] = []
    monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot)
        for typed in ("measure other", "against · baseline", "turn limits"):
            await palette(pilot, typed)
            await pilot.press("enter")
            await pilot.pause(0.2)

        assert isinstance(app.screen, KnobScreen)
    assert copied == [
        "inferwatch tune MODEL --vary max-num-seqs=16,32,64",
        "inferwatch baseline URL",
    ]


async def test_help_has_them_in_groups(watched_feed: Any, settle: Any) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot)
        await pilot.press("question_mark")
        await pilot.pause()
        told = str(app.screen.query_one(HelpDrawer).query_one(Static).content)

    setting, against = (
        told[told.index(f"\n{title}\n") :].partition("\n\n")[0]
        for title in ("settings: predict, turn, measure", "against")
    )
    assert "i  Predict other settings" in setting
    for each in ("k Turn limits", "tune", "inferwatch tune MODEL --vary"):
        assert each in " ".join(setting.split())
    for each in ("a  What changed", "C  Once", "baseline"):
        assert each in against


async def test_what_is_chosen_in_the_palette_is_done(
    app: InferwatchApp, settle: Any
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await palette(pilot, "steps")
        await pilot.press("enter")
        await pilot.pause()
        await settle(pilot)
        assert app.current_mode == "steps"

        await palette(pilot, "window")
        await pilot.press("enter")
        await pilot.pause()
        assert app.session.view.window is not Window.MINUTE
        assert not isinstance(app.screen, KeyPalette)


def letters_of(bindings: Iterable[BindingType]) -> set[str]:
    keys = (key for each in bindings for key in Binding.make_bindings([each]))
    return {each.key for each in keys if len(each.key) == 1}


@pytest.mark.parametrize("screen", SCREENS)
def test_no_screen_takes_a_letter_that_moves_through_time(
    screen: type[SessionScreen],
) -> None:
    own = letters_of(screen.__dict__.get("BINDINGS", ()))

    assert not own & letters_of(PLAYBACK_BINDINGS)
