"""Where in its session a feed is, as the header and the time line tell it."""

from collectors.clock import NS_PER_S
from inferwatch.feed import Feed, FeedState
from inferwatch.ui.shared.header_line import Telling
from inferwatch.ui.shared.time_line import Position


def position_of(feed: Feed) -> Position | None:
    """For the time line; None while the present is followed."""
    playback = feed.playback
    if playback is None or playback.at_live:
        return None
    (start_ns, end_ns), here_ns = playback.span_ns, playback.position_ns
    moments = start_ns, here_ns, end_ns
    began, here, ended = map(feed.wall_text, moments)
    return Position(
        start_ns=start_ns,
        end_ns=end_ns,
        here_ns=here_ns,
        clocks=(began, here, ended),
        playing=playback.playing,
        speed=playback.speed,
        seeking=playback.seeking,
        live=playback.goes_on,
        cannot_seek=playback.cannot_seek,
        trouble=_trouble(feed),
        shape=playback.shape,
        marks=playback.marks,
    )


def _trouble(feed: Feed) -> str | None:
    """What of a recorded session cannot be shown."""
    record = feed.record if feed.state is FeedState.REPLAYING else None
    return record.message if record else None


def telling_of(feed: Feed) -> Telling:
    """For the header: a replay, or how far a live view is behind."""
    playback = feed.playback
    behind_s = None
    if playback is not None and playback.goes_on and not playback.at_live:
        behind_s = (playback.span_ns[1] - playback.position_ns) / NS_PER_S
    return Telling(replay=feed.state is FeedState.REPLAYING, behind_s=behind_s)
