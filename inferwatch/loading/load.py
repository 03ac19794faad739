"""The load of a watch: a generator process and the stream of what it reports."""

import asyncio
from pathlib import Path

from collectors.collector import Collector
from collectors.load_stream import LoadStream
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.process import LoadProcess
from inferwatch.pipeline import Heard, Listener, Pipeline


class Load:
    """Starts the stream before the generator, and ends it after."""

    def __init__(
        self,
        plan: LoadPlan,
        stream: LoadStream,
        listener: Listener | None = None,
        log_path: Path | None = None,
    ) -> None:
        self._plan = plan
        self._stream = stream
        self._collector: Collector = Heard(stream, listener) if listener else stream
        self.log_path = log_path
        self._process = LoadProcess(log_path)
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The generator's process."""
        return self._process.pid

    async def start(self, pipeline: Pipeline) -> None:
        """Begin to send."""
        self._pump = asyncio.create_task(pipeline.pump(self._collector))
        await self._process.start(self._plan, self._stream.address)

    async def wait(self) -> int:
        """Until the plan was followed to its end; the generator's exit status."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End the generator and take what it still had to report."""
        await self._process.stop()
        await self._stream.close()
        if self._pump is not None:
            await self._pump
