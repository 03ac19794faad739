"""Opens a profile over a screen: what there is, or the question whether to take one."""

from textual.screen import Screen

from inferwatch.feed import Feed, ProfileStage
from inferwatch.ui.profile.dialog import ProfileDialog
from inferwatch.ui.profile.drawer import UNDER_WAY, ProfileDrawer
from inferwatch.ui.view import View


def toggle_profile(screen: Screen[None], feed: Feed, view: View) -> None:
    """Open the latest profile, or what is under way; without any, ask for one.

    An open one is closed.
    """
    if ProfileDrawer.close_on(screen):
        return
    desk = feed.profile_desk
    stage = desk.progress.stage
    if stage in UNDER_WAY or stage is ProfileStage.FAILED or desk.taken:
        ProfileDrawer(feed, view).open_on(screen)
    else:
        ask_for_profile(screen, feed, view)


def ask_for_profile(screen: Screen[None], feed: Feed, view: View) -> None:
    """Ask which steps to profile; once it has begun, show how far it is."""

    def begun(has_begun: bool | None) -> None:  # noqa: FBT001 - Textual passes it so
        if has_begun:
            ProfileDrawer.close_on(screen)
            ProfileDrawer(feed, view).open_on(screen)

    screen.app.push_screen(ProfileDialog(feed), begun)
