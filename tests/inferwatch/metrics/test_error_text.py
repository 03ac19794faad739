"""An error is read, not its JSON."""

import pytest

from inferwatch.metrics.load.book import error_text


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            '404 {"error":{"message":"No model `x`.","type":"NotFound"}}',
            "No model `x`.",
        ),
        ('400 {"object":"error","message":"too long"}', "too long"),
        ('422 {"detail":"bad body"}', "bad body"),
        ('400 {"error":{"message":"cut off in the mid', "cut off in the mid"),
        (
            r'400 {"message":"two\nlines, \"quoted\", \u00fcber"}',
            'two lines, "quoted", über',
        ),
        ('400 {"message":"broken \\u12', "broken \\u12"),
    ],
    ids=["openai", "old vLLM", "FastAPI", "cut", "escaped", "cut in an escape"],
)
def test_the_message_is_told_with_its_status(detail: str, said: str) -> None:
    assert error_text(detail) == f"{detail[:3]} {said}"


@pytest.mark.parametrize(
    "detail", ["", "Connection refused", "500 Oops", '502 {"x": 1}']
)
def test_what_is_no_such_json_stays_as_it_is(detail: str) -> None:
    assert error_text(detail) == detail
