"""Charts on one time axis: all of them where there is room, else one at a time."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.ui.shared.chart_plan import ChartPlan
from inferwatch.ui.shared.help_drawer import Key
from inferwatch.ui.shared.messages import LookAgain
from inferwatch.ui.shared.time_axis_line import TimeAxisLine
from inferwatch.ui.shared.time_chart import TimeChart
from inferwatch.ui.shared.watch_screen import WatchScreen


class ChartScreen(WatchScreen):
    """The order of the charts stays; ``tab`` looks at one after the other."""

    PLANS: ClassVar[Sequence[ChartPlan]] = ()
    MOST_TELLING: ClassVar[int] = 0
    """The chart to begin with where there is room for one only."""
    KEYS: ClassVar[Sequence[Key]] = (("tab", "one chart after the other"),)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "chart(1)", "chart", tooltip="One chart after the other"),
        Binding("shift+tab", "chart(-1)", "chart before", show=False),
    ]

    _alone: int | None = None
    """The chart that is shown alone."""

    def compose_charts(self) -> Iterable[Widget]:
        """The charts and their axis."""
        for index, plan in enumerate(self.PLANS):
            yield TimeChart(plan, id=f"chart-{index}")
        yield TimeAxisLine()

    def action_chart(self, by: int) -> None:
        """Another chart alone; after the last one all, where there is room."""
        stops = len(self.PLANS) + (not self.is_short)
        self._alone = (self._here + by) % stops
        self.fit_height()
        self.post_message(LookAgain())

    @property
    def _here(self) -> int:
        """The chart shown, one past the last when it is all of them."""
        if self._alone is not None and self._alone < len(self.PLANS):
            return self._alone
        return self.MOST_TELLING if self.is_short else len(self.PLANS)

    def fit_height(self) -> None:
        """One chart where several would be unreadable."""
        super().fit_height()
        here = self._here
        for index, chart in enumerate(self.query(TimeChart)):
            chart.display = here in {index, len(self.PLANS)}
