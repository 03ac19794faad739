"""The load of a watch: a generator process and the stream of what it reports."""

import asyncio

from collectors.load_stream import LoadStream
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.process import LoadProcess
from inferwatch.pipeline import Pipeline


class Load:
    """Starts the stream before the generator, and ends it after."""

    def __init__(self, plan: LoadPlan, stream: LoadStream) -> None:
        self._plan = plan
        self._stream = stream
        self._process = LoadProcess()
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The generator's process."""
        return self._process.pid

    async def start(self, pipeline: Pipeline) -> None:
        """Begin to send."""
        self._pump = asyncio.create_task(pipeline.pump(self._stream))
        await self._process.start(self._plan, self._stream.address)

    async def stop(self) -> None:
        """End the generator and take what it still had to report."""
        await self._process.stop()
        await self._stream.close()
        if self._pump is not None:
            await self._pump
