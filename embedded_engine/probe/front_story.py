"""Makes readings of the front-end tap's records, on the channel's own thread."""

from collections.abc import Callable

from collectors.readings import AnyReading, EventKind, RequestEvent, Vantage


class FrontStory:
    """The requests of one API server, as its clients saw them."""

    def __init__(
        self, keep: Callable[[str, AnyReading], None], let_go: Callable[[str], None]
    ) -> None:
        self.arrived_count = 0
        self.finished_count = 0
        self.output_tokens = 0
        self._keep = keep
        self._let_go = let_go

    def arrived(
        self,
        t_ns: int,
        tokenised_ns: int,
        request_id: str,
        external_id: str | None,
        asked: tuple[int | None, int | None, float | None],
    ) -> list[AnyReading]:
        """A client's request, tokenised and handed to the engine."""
        self.arrived_count += 1
        prompt_tokens, max_tokens, temperature = asked
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.ARRIVED,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
            external_id=external_id,
            tokenised_ns=tokenised_ns,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        self._keep(f"{EventKind.ARRIVED} {request_id}", event)
        return [event]

    def first_token(self, t_ns: int, request_id: str) -> list[AnyReading]:
        """The first token is on its way to the client."""
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FIRST_TOKEN,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
        )
        self._keep(f"{EventKind.FIRST_TOKEN} {request_id}", event)
        return [event]

    def finished(
        self, t_ns: int, request_id: str, reason: str, output_tokens: int | None
    ) -> list[AnyReading]:
        """The last of it is on its way, or the client is gone."""
        self.finished_count += 1
        self.output_tokens += output_tokens or 0
        for kind in (EventKind.ARRIVED, EventKind.FIRST_TOKEN):
            self._let_go(f"{kind} {request_id}")
        event = RequestEvent(
            t_ns=t_ns,
            kind=EventKind.FINISHED,
            vantage=Vantage.FRONTEND,
            request_id=request_id,
            output_tokens=output_tokens,
            reason=reason,
        )
        return [event]
