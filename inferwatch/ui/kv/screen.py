"""The KV cache screen: which request holds which blocks."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import FeedState
from inferwatch.formatting import (
    about,
    counted,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.cache.memory import BlockPicture, Holder, Memory, Room
from inferwatch.metrics.cache.misses import MissGroup, MissShare
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.number import label_of, numbers, numbers_in
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import KvState
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit
from inferwatch.ui.kv.bar import KvBar
from inferwatch.ui.kv.block_cells import MapOrder
from inferwatch.ui.kv.block_map import BlockMapPanel
from inferwatch.ui.kv.facts import (
    HolderTable,
    counted_facts,
    facts_of,
    server_facts,
)
from inferwatch.ui.kv.misses import MissPanel, MissTable
from inferwatch.ui.messages import LookAgain, OpenRequest
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS
from inferwatch.ui.widgets.time_chart import CHART_KEYS, ChartStack
from inferwatch.ui.widgets.totals import ROOMY, Fact, TotalsPanel
from inferwatch.visible import visible

PREFIX_NUMBERS = numbers(
    PrefixCache.blocks,
    PrefixCache.beginnings,
    PrefixCache.branches,
    PrefixCache.deepest,
    PrefixCache.stored,
    PrefixCache.evicted,
    PrefixCache.stored_again,
    PrefixCache.lifetime_s,
    PrefixCache.missed,
)


class PrefixPanel(TotalsPanel):
    """Cached blocks by KV events: how they are shared and how long they live."""

    DEFAULT_CSS = """
    PrefixPanel {
        display: none;
        &.-told { display: block; }
    }
    """

    def show_cache(self, snapshot: Snapshot) -> None:
        """Show the prefix cache, or hide the panel if nothing reports it."""
        cache = snapshot.prefix_cache
        self.set_class(cache is not None, "-told")
        if cache is not None:
            ranks = f" of {counted(cache.ranks, 'rank')}" if cache.ranks > 1 else ""
            aside = f"KV events{ranks}, {snapshot.window.span}"
            self.show(
                "Prefix cache", aside, prefix_facts(cache, snapshot.kv.total_blocks)
            )


class ServerCountsPanel(TotalsPanel):
    """What the server alone counts of its caches, blocks and requests."""

    DEFAULT_CSS = """
    ServerCountsPanel { display: none; }
    """

    _rows_shown = 0

    def show_counts(self, snapshot: Snapshot) -> None:
        """Show what is counted, or hide the panel where nothing is."""
        facts = server_facts(snapshot.server_counts)
        lines = 1 + len(facts) if facts else 0
        if lines != self._rows_shown:
            self._rows_shown = lines
            self.styles.height, self.display = lines, bool(lines)
        if facts:
            self.show("The server counts", f"scrape, {snapshot.window.span}", facts)


def prefix_facts(cache: PrefixCache, total: int | None) -> Sequence[Sequence[Fact]]:
    return [_now(cache, total), _traffic(cache), _lives(cache)]


def _now(cache: PrefixCache, total: int | None) -> Sequence[Fact]:
    size = f" × {cache.block_tokens:,} tokens" if cache.block_tokens else ""
    blocks = f"{cache.blocks:,} {'block' if cache.blocks == 1 else 'blocks'}"
    part = f", {format_share(min(cache.blocks / total, 1)).strip()}" if total else ""
    now = f"{about(blocks) if cache.partial else blocks}{size}{part}"
    return [
        (label_of(PrefixCache.blocks), now, "cached"),
        (label_of(PrefixCache.beginnings), f"{cache.beginnings:,}", ""),
        (label_of(PrefixCache.branches), f"{cache.branches:,}", ""),
        (label_of(PrefixCache.deepest), counted(cache.deepest, "block"), ""),
        *(
            (f"{visible(tier)} tier", about(text) if cache.tiers_partial else text, "")
            for tier, blocks in cache.tiers.items()
            for text in [counted(blocks, "block").strip()]
        ),
    ]


def _traffic(cache: PrefixCache) -> Sequence[Fact]:
    again = f"{cache.stored_again:,}"
    if cache.stored:
        again += (
            f", {format_share(cache.stored_again / cache.stored).strip()} of stored"
        )
    return [
        (
            label_of(PrefixCache.stored),
            f"{cache.stored:,}{_per_s(cache.stored_per_s)}",
            "",
        ),
        (
            label_of(PrefixCache.evicted),
            f"{cache.evicted:,}{_per_s(cache.evicted_per_s)}",
            "",
        ),
        (label_of(PrefixCache.stored_again), again, ""),
    ]


def _per_s(rate: float | None) -> str:
    return "" if rate is None else f", {format_rate(rate).strip()}/s"


def _lives(cache: PrefixCache) -> Sequence[Fact]:
    lives = cache.lifetime_s
    missed: Sequence[Fact] = ()
    if cache.missed:
        text = f"{counted(cache.missed, 'batch', 'batches')} of events"
        missed = ((label_of(PrefixCache.missed), text, "warn"),)
    if not lives.n:
        return [
            (label_of(PrefixCache.lifetime_s), "nothing was evicted", ""),
            *missed,
        ]
    names = ("p50", "p95", "max")
    values = format_durations(getattr(lives, name) for name in names)
    life = label_of(PrefixCache.lifetime_s)
    return [
        (
            f"{life} {name}",
            about(value.strip()) if name in lives.weak else value.strip(),
            "",
        )
        for name, value in zip(names, values, strict=True)
    ] + [*missed]


OFF = "the probe's map is off (--no-block-map)"
FAILED = "the block map switched itself off"
"""Note of a probe whose block map has failed."""
SOON_NS = 3 * NS_PER_S
"""Time within which a watched engine sends its first map."""


def why_no_map(snapshot: Snapshot, state: FeedState) -> str:
    """Return why there is no block map; empty if there is one, or no engine yet."""
    if snapshot.block_maps or not (snapshot.without_steps or snapshot.engines):
        return ""
    if snapshot.without_steps:
        if snapshot.prefix_cache is None:
            return (
                "no probe: a block map would be invented; only the share used is told"
            )
        return (
            "no probe: who holds what would be invented; KV events tell what is cached"
        )
    if snapshot.timeline.lost_ns is not None:
        return "no block map: the engine is lost, and all it held with it"
    if snapshot.memory is not None and snapshot.memory.evicted is not None:
        return "no block map now: a part of it was lost; a whole one comes soon"
    return _why_no_map_yet(snapshot, state)


def _why_no_map_yet(snapshot: Snapshot, state: FeedState) -> str:
    broke = [each.text for each in snapshot.notes if FAILED in each.text]
    if broke:
        return broke[-1]
    if state is FeedState.REPLAYING:
        return f"no block map: a recording older than maps, or {OFF}"
    if snapshot.latest_step is None or snapshot.covered_ns < SOON_NS:
        return "the block map comes with the first steps"
    return f"no block map: {OFF}"


class NoMapLine(LinePanel):
    """Explains why there is no map."""

    DEFAULT_CSS = """
    NoMapLine { display: none; }
    """

    _why = ""

    def show(self, why: str) -> None:
        """Show why there is no block map; an empty reason hides the line."""
        self._why = why
        self.display = bool(why)
        self.redraw()

    def line(self, width: int) -> Line:
        return fit((TextRun("  "), TextRun(self._why, "muted")), width)


BESIDE = 160
"""Width from which the holders are beside the map."""


READING = (
    "█ private, ▓ shared, ⣿ idle-cached, · free, × the null block, ◆ the cursor.",
    "› before a name: that part begins further to the right in its row.",
    "A cell of several blocks shows what most of them are; of as many, the held.",
    "One request's blocks stand out: under the cursor, or pointed at in the table.",
    (
        "By holder, ▇ and ▒ tell a request from the one before; a shared block stands "
        "with the first that holds it."
    ),
    "By prefix, blocks that the same requests share stand together, most shared first.",
)


class KvView(StrEnum):
    """The part with the focus, which is shown alone if room is short."""

    MAP = "map"
    HOLDERS = "holders"
    CHARTS = "charts"
    MISSES = "misses"


class KvScreen(WatchScreen):
    """Blocks and their holders, savings and costs, and usage over time."""

    NAME = "kv"
    KEY = "4"
    LABEL = "KV"
    QUESTION = "Who holds the memory?"
    EXPLAINS = (
        *numbers(
            KvState.total_blocks,
            KvState.block_tokens,
            KvState.used_blocks,
            KvState.cached_blocks,
            KvState.free_blocks,
            KvState.peak_used_blocks,
            KvState.prefix_queries,
            KvState.prefix_hits,
            KvState.preemptions,
            KvState.recomputed_tokens,
        ),
        *numbers(
            Memory.private_blocks,
            Memory.shared_blocks,
            Memory.map_age_s,
            Memory.growth_blocks_per_s,
            Memory.full_in_s,
            Memory.tokens_saved,
            Memory.waste_tokens,
            Memory.waste_share,
            Memory.hit_rate,
            Memory.hit_rate_lifetime,
            Memory.evicted,
            Memory.evicted_per_s,
            Memory.eviction_age_p50_s,
            Memory.eviction_age_max_s,
            Memory.hit_curve,
            Memory.hit_curve_blocks,
            Memory.room,
        ),
        *numbers(
            Room.idle_blocks,
            Room.tokens_per_request,
            Room.blocks_per_request,
            Room.shared_blocks_per_request,
            Room.n,
        ),
        *numbers(Holder.blocks, Holder.tokens, Holder.waste_tokens, Holder.age_s),
        *PREFIX_NUMBERS,
        *numbers(
            MissShare.cause,
            MissGroup.requests,
            MissGroup.missed,
            MissGroup.hit_tokens,
            MissGroup.differs_at,
            MissGroup.differs_at_token,
            MissGroup.idle_s,
            MissGroup.unlimited_tokens,
            MissGroup.reordered_tokens,
        ),
        *numbers_in(ServerCounts),
        *numbers(Timeline.waiting_max),
        *COST_NUMBERS,
    )
    NEEDS_REQUESTS = True
    KEYS = (
        ("click", "on a block: who holds it; twice: that request"),
        *CHART_KEYS,
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "view(1)", "view", tooltip="Block map, holders, charts, misses"),
        Binding("shift+tab", "view(-1)", "previous view", show=False),
        Binding(
            "m",
            "order",
            "map by",
            tooltip="The map by block id, by holder, by shared prefix",
        ),
        Binding(
            "z", "zoom", "zoom", tooltip="A cell for each block, or all blocks in sight"
        ),
        Binding("k", "rank", "rank", tooltip="The map of the next rank"),
        Binding("v", "misses", "misses", tooltip="Why prompts missed the prefix cache"),
    ]
    DEFAULT_CSS = """
    KvScreen {
        KvBar { margin-top: 1; }
        TotalsPanel { height: 6; }
        PrefixPanel { height: 4; }
        #who { display: none; height: 2fr; }
        BlockMapPanel { height: 3fr; }
        HolderTable { height: 2fr; }
        ChartStack { height: 1fr; }
        #chart-0 { height: 2fr; }
        &.-mapped #who { display: block; }
        &.-mapped ChartStack { display: none; }
        &.-mapped.-charts #who { display: none; }
        &.-mapped.-charts ChartStack { display: block; }
        &.-tall.-mapped #who, &.-tall.-mapped ChartStack { display: block; }
        &.-beside #who { layout: horizontal; }
        &.-beside BlockMapPanel { width: 3fr; height: 1fr; }
        &.-beside HolderTable { width: 2fr; height: 1fr; margin-left: 2; }
        &.-short KvBar { height: 4; margin: 0; }
        &.-short.-map TotalsPanel, &.-short.-map HolderTable { display: none; }
        &.-short.-holders BlockMapPanel { display: none; }
        &.-short.-mapped.-charts TotalsPanel { display: none; }
        &.-counted TotalsPanel { height: 5; }
        &.-counted PrefixPanel { height: 4; }
        &.-short.-counted KvBar { height: 2; }
        &.-untouched #who { display: none !important; }
        #misses { display: none; height: 1fr; }
        &.-misses #misses { display: block; }
        &.-misses #who, &.-misses ChartStack { display: none !important; }
        &.-short.-misses TotalsPanel { display: none; }
    }
    """
    AUTO_FOCUS = ""
    WILL_SHOW = "who holds which block, the blocks in use over time, and preemptions"

    _view = KvView.MAP
    _rank: tuple[str, int] | None = None
    """Source and rank of the map shown; None is the first."""
    _maps: Sequence[BlockPicture] = ()
    _holders: Sequence[Holder] = ()

    def compose_panels(self) -> Iterable[Widget]:
        yield KvBar()
        yield TotalsPanel()
        yield PrefixPanel()
        yield ServerCountsPanel()
        yield NoMapLine()
        with Vertical(id="who"):
            yield BlockMapPanel()
            yield HolderTable()
        with Vertical(id="misses"):
            yield MissPanel()
            yield MissTable()
        yield ChartStack((charts.KV, charts.WAITING, charts.PREEMPTIONS))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        can = {
            "order": self._map_in_sight,
            "zoom": self._map_in_sight,
            "misses": self._mapped and not self.has_class("-untouched"),
            "rank": self._map_in_sight and len(self._maps) > 1,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def explanations(self) -> Mapping[str, Sequence[str]]:
        """Add to the help how the block map is read."""
        texts = super().explanations()
        return {"the block map": READING, **texts} if self._mapped else texts

    def fit_height(self) -> None:
        super().fit_height()
        self.set_class(self.size.width >= BESIDE, "-beside")
        for view in KvView:
            self.set_class(self._mapped and view is self._view, f"-{view.value}")

    def show_panels(self, snapshot: Snapshot) -> None:
        """Show the cache, facts, block map and holders, or why there is no map."""
        self._take_maps(snapshot)
        self.query_one(KvBar).show(snapshot)
        self.set_class(snapshot.without_steps, "-counted")
        aside = f"counts of {snapshot.window.span}"
        if snapshot.without_steps:
            facts = counted_facts(snapshot)
        else:
            facts = facts_of(snapshot, briefly=self.size.width < ROOMY)
        self.query_one(TotalsPanel).show("what it saves and costs", aside, facts)
        self.query_one(PrefixPanel).show_cache(snapshot)
        self.query_one(ServerCountsPanel).show_counts(snapshot)
        self.query_one(NoMapLine).show(why_no_map(snapshot, self.feed.state))
        if self.needs_misses:
            self.query_one(MissPanel).show(snapshot)
            self.query_one(MissTable).show(snapshot.prefix_misses)
        picture = self._picture
        if picture is None:
            return
        self.query_one(BlockMapPanel).show(
            picture,
            self._names(picture),
            snapshot.kv.block_tokens,
            snapshot.now_ns - picture.t_ns,
            self._rank_text(picture),
        )
        self.query_one(HolderTable).show(self._holders)
        self._light()

    def _take_maps(self, snapshot: Snapshot) -> None:
        had, several = self._mapped, len(self._maps) > 1
        self._maps = snapshot.block_maps
        self._holders = snapshot.memory.holders if snapshot.memory else ()
        self.set_class(self._mapped, "-mapped")
        if self._mapped != had:
            self.fit_height()
            if self.focused is None:
                self.call_after_refresh(self._focus_view)
        if self._mapped != had or several != (len(self._maps) > 1):
            self.refresh_bindings()

    @property
    def needs_misses(self) -> bool:
        return self._mapped and self._view is KvView.MISSES

    @property
    def _mapped(self) -> bool:
        return bool(self._maps)

    @property
    def _map_in_sight(self) -> bool:
        if not self._mapped or self.has_class("-untouched"):
            return False
        if self.is_short:
            return self._view is KvView.MAP
        if self._view is KvView.MISSES:
            return False
        return self._view is not KvView.CHARTS or self.has_class("-tall")

    @property
    def _picture(self) -> BlockPicture | None:
        matching = (each for each in self._maps if _rank_of(each) == self._rank)
        return next(matching, self._maps[0] if self._maps else None)

    def _rank_text(self, picture: BlockPicture) -> str:
        if len(self._maps) < 2:
            return ""
        at = self._maps.index(picture) + 1
        return f"rank {picture.rank} ({at} of {len(self._maps)})"

    def _names(self, picture: BlockPicture) -> dict[int, Holder]:
        """Return the map's holders by ordinal, leaving out those of other servers."""
        prefix = f"{picture.source}/"
        return {
            each.ordinal: each for each in self._holders if each.key.startswith(prefix)
        }

    def action_rank(self) -> None:
        if self._picture is not None:
            here = self._maps.index(self._picture)
            self._rank = _rank_of(self._maps[(here + 1) % len(self._maps)])
            self.post_message(LookAgain())

    def action_order(self) -> None:
        """Order the map's blocks in the next way: by id, holder or prefix."""
        orders, panel = list(MapOrder), self.query_one(BlockMapPanel)
        panel.show_by(orders[(orders.index(panel.order) + 1) % len(orders)])

    def action_zoom(self) -> None:
        """Show one block per cell, or all blocks."""
        panel = self.query_one(BlockMapPanel)
        panel.show_single(single=not panel.single)

    def _light(self) -> None:
        """Highlight the selected holder's blocks while the table has the focus."""
        table = self.query_one(HolderTable)
        pointed = table.pointed if table.has_focus else None
        self.query_one(BlockMapPanel).light(pointed.ordinal if pointed else None)

    @on(HolderTable.RowHighlighted)
    def _show_its_blocks(self) -> None:
        self._light()

    @on(HolderTable.RowSelected)
    def _open_row(self, message: HolderTable.RowSelected) -> None:
        self.post_message(OpenRequest(message.key))

    @on(BlockMapPanel.HolderOpened)
    def _open_holder(self, message: BlockMapPanel.HolderOpened) -> None:
        picture = self._picture
        holder = self._names(picture).get(message.ordinal) if picture else None
        if holder is not None:
            self.post_message(OpenRequest(holder.key))

    def action_view(self, by: int) -> None:
        """Show the next of map, holders and charts; on short screens chart by chart."""
        stack = self.query_one(ChartStack)
        if not self._mapped:
            self.action_chart(by)
            return
        if self._view is KvView.CHARTS and self.is_short and not stack.at_end(by):
            self.action_chart(by)
            return
        views = list(KvView)
        self._show_view(views[(views.index(self._view) + by) % len(views)])

    def action_misses(self) -> None:
        """Show why prompts missed the prefix cache, or the map again."""
        self._show_view(KvView.MAP if self.needs_misses else KvView.MISSES)

    def _show_view(self, view: KvView) -> None:
        self._view = view
        self.fit_height()
        self._focus_view()
        self.refresh_bindings()
        self.post_message(LookAgain())

    def _focus_view(self) -> None:
        widgets: dict[KvView, type[Widget]] = {
            KvView.MAP: BlockMapPanel,
            KvView.HOLDERS: HolderTable,
            KvView.MISSES: MissTable,
        }
        panel = widgets.get(self._view)
        self.set_focus(None if panel is None else self.query_one(panel))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show the part of the screen that a click has focused."""
        before = self._view
        if isinstance(event.widget, BlockMapPanel):
            self._view = KvView.MAP
        elif isinstance(event.widget, HolderTable):
            self._view = KvView.HOLDERS
        elif isinstance(event.widget, MissTable):
            self._view = KvView.MISSES
        if self._view is not before:
            self.fit_height()
        self._light()


def _rank_of(picture: BlockPicture) -> tuple[str, int]:
    return picture.source, picture.rank
