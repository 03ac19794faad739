"""What a step costs in the tests that set two schedulers side by side."""

GAP_NS = 200_000


def step_ns(members: int, tokens: int) -> int:
    """By how many are in it and how many tokens are computed."""
    return 4_000_003 + 500_009 * members + 20_011 * tokens
