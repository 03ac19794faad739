"""Cards of objectives and cost on the page of a session."""

from dataclasses import replace

from collectors.contract.readings import Prices
from inferwatch.metrics.model.spending import spending
from inferwatch.printing.export.html.page import slo_cards
from tests.inferwatch.metrics.test_spending import good, shown


def test_a_page_tells_share_and_cost() -> None:
    seen = shown(slo=replace(good(25_000), goodput_per_s=0.1))
    seen = replace(seen, spending=spending(seen, Prices(t_ns=0, gpu_hour=1.8)))

    cards = {name: text.strip() for name, text in slo_cards(seen)}

    assert cards == {
        "SLO MISSED: ttft_s<1": "50%",
        "goodput, req/s": "0.10",
        "$ per Mtok": "1.00",
        "$ per good Mtok": "4.00",
    }


def test_a_page_says_nothing_of_what_nobody_asked() -> None:
    assert slo_cards(shown()) == []
