"""Tests that hold of whatever is drawn: of a few examples, and of many in a soak."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings

Test = TypeVar("Test", bound=Callable[..., None])


def drawn(few: int, many: int, *values: Any, **named: Any) -> Callable[[Test], Any]:
    """As ``given``; beside the test stands another one, of so many examples."""

    def of(test: Test, count: int) -> Any:
        sized = settings(
            max_examples=count,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        given_some: Any = given(*values, **named)
        return sized(given_some(test))

    def decorate(test: Test) -> Any:
        name = f"{test.__name__}_of_many"
        test.__globals__[name] = pytest.mark.soak(of(test, many))
        return of(test, few)

    return decorate
