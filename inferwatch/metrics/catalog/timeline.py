"""The columns of the charts; None is a gap, and no step in a bin is a gap, too."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

TIMELINE = (
    *metrics(
        "timeline.",
        None,
    ),
    *metrics(
        "timeline.",
        Vantage.FRONTEND,
    ),
    *metrics(
        "timeline.",
        Vantage.ENGINE,
    ),
    *metrics(
        "timeline.",
        Vantage.ENGINE,
    ),
    *metrics(
        "timeline.",
        Vantage.ENGINE,
    ),
    *metrics(
        "timeline.",
        Vantage.SCRAPE,
    ),
)
