"""Which routes of an API server ask something of a model."""

PLAIN_MODEL_ROUTES = (
    *("/classify", "/detokenize", "/encode", "/generate", "/generative_scoring"),
    *("/invocations", "/pooling", "/rerank", "/score", "/tokenize"),
)
"""Those without a version or vendor in front."""
MODEL_ROUTES = ("/v1/", "/v2/", "/inference/", "/cohere/", *PLAIN_MODEL_ROUTES)
"""Beginnings of routes that ask something of a model."""
OF_THE_SERVER = frozenset(
    {"/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
)
"""Routes that begin so, but ask something of the server."""


def asks_model(route: str, method: str) -> bool:
    """Whether a request by this method to this route's template is one to a model."""
    asks = route.startswith(MODEL_ROUTES) and route not in OF_THE_SERVER
    return asks and method == "POST"
