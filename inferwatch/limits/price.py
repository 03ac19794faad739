"""Price and energy of tokens."""


def cost_per_million(gpu_hour: float, gpus: int, tokens_per_s: float) -> float:
    """Price of a million tokens: hour price · GPUs / 3600 · 10⁶ / (tokens/s).

    The usual unit of providers' price lists: Pope et al., arXiv 2211.05102, figure 1,
    in chip-seconds per token.
    """
    return gpu_hour * gpus / 3600 * 1e6 / tokens_per_s


def joules_per_token(joules: float, tokens: int) -> float | None:
    """Energy of a window divided by its tokens; None without tokens.

    As in Samsi et al., *From words to watts*, arXiv 2310.03003.
    """
    return joules / tokens if tokens else None
