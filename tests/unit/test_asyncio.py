"""Streams in coroutines: ``async for``, cancelled at any moment."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.batches import chunk
from tests.unit.conftest import Member
from tests.unit.test_streams import open_gate, stream
from zkconsumer.errors import ConsumerTimeoutError, InvalidMessageError, UsageError
from zkconsumer.runtime.delivery.chunks import Chunk, PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.gate import DeliveryGate

CANCELLATIONS = {"messages": 10_000, "lists": 1000, "lists with a timeout": 1000, "columns": 100}
STREAMS = 3
SEED = int(os.environ.get("ZKC_SEED") or random.randrange(1 << 30))

Read = Callable[[KafkaStream], AsyncIterator[Any]]
WAYS: dict[str, Read] = {
    "messages": lambda each: aiter(each),
    "lists": lambda each: aiter(each.batches(7)),
    "lists with a timeout": lambda each: aiter(each.batches(3, timeout=0.0002)),
    "columns": lambda each: aiter(each.arrow_batches()),
}


def offsets(item: Any) -> list[int]:
    """The offsets of a message, a list or columns."""
    if isinstance(item, list):
        return [message.offset for message in item]
    return [item.offset] if hasattr(item, "offset") else item["offset"].to_pylist()


def run(work: Any) -> None:
    """Run a coroutine, which has a minute."""
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("way", WAYS)
def test_random_cancellations_neither_lose_nor_repeat(way: str) -> None:
    """Many cancellations of tasks that read three streams of one event loop, at random moments:
    of a task that loops, or of a wait for one item. Every message arrives once and in order, and no
    position is ever beyond what has arrived."""
    logging.getLogger(__name__).warning("ZKC_SEED=%s pytest %s", SEED, __file__)
    enough = CANCELLATIONS[way]
    rng = random.Random(SEED)
    infos = [PartitionTopicInfo("t", number, 0) for number in range(STREAMS)]
    streams = [KafkaStream(Reader(open_gate())) for _ in infos]
    seen: list[list[int]] = [[] for _ in infos]
    sent, over, cancelled = [0] * STREAMS, threading.Event(), 0

    def feed() -> None:
        own = random.Random(SEED + 1)
        while not over.is_set():
            number = own.randrange(STREAMS)
            if streams[number]._reader.queue.full:
                time.sleep(0.0001)
                continue
            first, count = sent[number], own.randrange(1, 12)
            sent[number] += count
            streams[number]._reader.queue.put(chunk(infos[number], first, first + count - 1))

    async def loop(number: int) -> None:
        async for item in WAYS[way](streams[number]):
            seen[number] += offsets(item)
            if rng.random() < 0.1:
                await asyncio.sleep(rng.choice((0, 0.0001)))

    async def one_at_a_time(number: int) -> None:
        items = WAYS[way](streams[number])
        while True:
            try:
                item = await asyncio.wait_for(anext(items), rng.choice((0, 0.0001, 0.001)))
                seen[number] += offsets(item)
            except TimeoutError:
                count()

    def count() -> None:
        nonlocal cancelled
        cancelled += 1
        for each, info in zip(seen, infos, strict=True):
            assert (info.consumed_offset or 0) <= len(each)

    async def disturb(number: int) -> None:
        while cancelled < enough or sent[number] <= 5:
            alone = rng.random() < 0.5  # or the next begins before the cancelled task has ended
            task = asyncio.create_task((one_at_a_time if alone else loop)(number))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(rng.choice((0, 0, 0.0001)))
            task.cancel()
            count()
            while alone and not task.done():  # ``wait_for`` of 3.11 may ignore a cancellation
                await asyncio.sleep(0)
                task.cancel()

    async def all_streams() -> None:
        await asyncio.gather(*map(disturb, range(STREAMS)))
        over.set()
        feeder.join()
        for number, each in enumerate(streams):
            items = WAYS[way](each)
            while len(seen[number]) < sent[number]:
                seen[number] += offsets(await anext(items))

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        run(all_streams())
    finally:
        over.set()
    for number, each in enumerate(seen):
        assert each == list(range(sent[number])), "lost, skipped or repeated"


@pytest.fixture
def info() -> PartitionTopicInfo:
    """A partition that starts at offset 0."""
    return PartitionTopicInfo("t", 0, 0)


def test_waiting_leaves_the_event_loop_to_others(info: PartitionTopicInfo) -> None:
    """A waiting coroutine is woken by a chunk, and by the end. With many messages ready, others
    run all the same."""
    each, turns = stream(timeout_ms=-1), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work() -> None:
        other = asyncio.create_task(others())
        threading.Timer(0.05, each._reader.queue.put, (chunk(info, 0, 2),)).start()
        messages = aiter(each)
        assert [(await anext(messages)).offset for _ in range(3)] == [0, 1, 2]
        assert turns > 10
        each._reader.queue.put(chunk(info, 3, 20_000))
        before = turns
        for _ in range(19_998):
            await anext(messages)
        assert before < turns < before + 2000
        threading.Timer(0.05, each._reader.shutdown).start()
        assert [message async for message in messages] == []
        other.cancel()

    run(work())
    assert info.consumed_offset == 20_001


def test_a_coroutine_waits_as_long_as_a_thread(info: PartitionTopicInfo) -> None:
    """``consumer.timeout.ms`` raises, a timeout of ``batches`` gives an empty list. Afterwards
    reading continues. A timeout of 0 lets other coroutines run, too."""
    each = stream(timeout_ms=30)

    async def work() -> None:
        with pytest.raises(ConsumerTimeoutError, match="no message within"):
            await anext(aiter(each))
        begun = time.monotonic()
        assert await anext(aiter(each.batches(timeout=0.02))) == []
        assert time.monotonic() >= begun + 0.015
        let_run = asyncio.create_task(asyncio.sleep(0))
        lists = aiter(each.batches(timeout=0))
        for _ in range(3):
            assert await anext(lists) == []
        assert let_run.done()
        assert (await anext(aiter(each.arrow_batches(timeout=0)))).num_rows == 0
        each._reader.queue.put(chunk(info, 0, 3))
        assert [message.offset for message in await anext(lists)] == [0, 1, 2, 3]

    run(work())


def test_a_coroutine_gets_the_errors_of_the_stream(info: PartitionTopicInfo) -> None:
    """Damage is raised after the messages before it, and the stream has failed."""
    each = stream(timeout_ms=-1)
    good = chunk(info, 0, 1)

    async def work() -> None:
        messages = aiter(each)
        each._reader.queue.put(Chunk(info, good.data, 0, 2, damaged=True))
        assert [(await anext(messages)).offset for _ in range(2)] == [0, 1]
        with pytest.raises(InvalidMessageError):
            await anext(messages)
        with pytest.raises(UsageError, match="has failed"):
            await anext(messages)

    run(work())


def test_a_coroutine_is_woken_when_delivery_resumes(info: PartitionTopicInfo) -> None:
    """Nothing is delivered while the session may be lost."""
    gate = DeliveryGate()
    each = KafkaStream(Reader(gate))
    each._reader.queue.put(chunk(info, 0, 0))

    async def work() -> None:
        reading = asyncio.ensure_future(anext(aiter(each)))
        await asyncio.sleep(0.02)
        assert not reading.done()
        threading.Thread(target=gate.extend, args=(gate._now() + 60,)).start()
        assert (await reading).offset == 0

    run(work())


def test_a_second_task_is_a_usage_error(info: PartitionTopicInfo) -> None:
    """While one waits. After its cancellation another may wait."""
    each = stream(timeout_ms=-1)

    async def work() -> None:
        first = asyncio.ensure_future(anext(aiter(each)))
        await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="one task for each stream"):
            await anext(aiter(each))
        assert not first.done()
        first.cancel()
        second = asyncio.ensure_future(anext(aiter(each)))
        await asyncio.sleep(0.01)
        assert first.cancelled()
        each._reader.queue.put(chunk(info, 0, 0))
        assert (await second).offset == 0

    run(work())


def test_a_chunk_after_the_end_of_the_event_loop(info: PartitionTopicInfo) -> None:
    """The fetcher does not notice that a loop has ended, and another loop may read."""
    each = stream(timeout_ms=-1)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(anext(aiter(each)))  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    each._reader.queue.put(chunk(info, 0, 0))
    assert asyncio.run(anext(aiter(each))).offset == 0  # type: ignore[arg-type]
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_the_end_of_an_async_with_block_leaves_the_group(member: Member) -> None:
    """It does not wait for the message that a cancelled coroutine has in hand, which is not
    consumed, and other coroutines run meanwhile."""

    async def work() -> None:
        async with member:
            created = await asyncio.to_thread(member.create_message_streams, {"t": 1})
            plane = member._plane
            assert plane is not None
            ((info, control),) = plane.partitions()
            control.queue.put(chunk(info, 0, 5))
            async for message in created["t"][0]:
                if message.offset == 3:
                    break
        assert member.closed
        assert info.consumed_offset == 3

    begun = time.monotonic()
    run(work())
    assert time.monotonic() < begun + 10
