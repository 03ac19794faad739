"""An engine's metrics as vLLM exposes them, moved by what a test says happened."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0)
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
LABELS = ("engine", "model_name")


class MadeUpEngine:
    """Requests that ended, as ``/metrics`` of a vLLM server tells of them."""

    def __init__(self, model: str = "tiny", rank: str = "0") -> None:
        self._registry = CollectorRegistry()
        self._whose = (rank, model)
        self.running = self._gauge("vllm:num_requests_running")
        self.waiting = self._gauge("vllm:num_requests_waiting")
        self.kv_usage = self._gauge("vllm:kv_cache_usage_perc")
        self._prompt_tokens = self._counter("vllm:prompt_tokens")
        self._output_tokens = self._counter("vllm:generation_tokens")
        name = "vllm:request_success"
        labels = (*LABELS, "finished_reason")
        self._ended = Counter(name, name, labels, registry=self._registry)
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", TTFT_BOUNDS)
        self._itl = self._histogram("vllm:inter_token_latency_seconds", ITL_BOUNDS)
        name = "vllm:cache_config_info"
        told = ("block_size", "num_gpu_blocks")
        Gauge(name, name, told, registry=self._registry).labels("16", "1001").set(1)

    def request(self, ttft_s: float, itl_s: float, tokens: int = 10) -> None:
        """A request has ended."""
        self._ttft.observe(ttft_s)
        for _ in range(tokens - 1):
            self._itl.observe(itl_s)
        self._prompt_tokens.inc(100)
        self._output_tokens.inc(tokens)
        self._ended.labels(*self._whose, "stop").inc()

    @property
    def text(self) -> str:
        """What it exposes now."""
        return generate_latest(self._registry).decode()

    def _gauge(self, name: str) -> Gauge:
        return Gauge(name, name, LABELS, registry=self._registry).labels(*self._whose)

    def _counter(self, name: str) -> Counter:
        return Counter(name, name, LABELS, registry=self._registry).labels(*self._whose)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(
            name, name, LABELS, buckets=bounds, registry=self._registry
        ).labels(*self._whose)
