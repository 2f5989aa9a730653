"""Requests that tools send to many brokers at a time: log ends, and offsets of groups in Kafka.

Each broker or group has a thread, so that none waits for another. Each thread uses its own
connections, and closes them at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.list_offsets import LATEST, list_offsets
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError

CLIENT_ID: Final = "zkconsumer-admin"
_BATCH: Final = 2000
_THREADS: Final = 16


class LogEnds:
    """Reads log end offsets from brokers. Used from one thread.

    Args: timeout: seconds for each connection and answer. security: how to encrypt and log in;
    None for neither.

    A broker that did not answer is not asked again.
    """

    def __init__(self, timeout: float, security: KafkaSecurity | None = None) -> None:
        self._timeout = timeout
        self._security = security
        self._silent: dict[int, str] = {}
        """Brokers that did not answer, or have no registration, and why."""
        self._unanswered: Counter[int] = Counter()
        self._refused: dict[tuple[int, type[BrokerError]], tuple[BrokerError, int]] = {}
        """The first error of each broker and type, and how many there are."""

    def of(
        self, endpoints: Mapping[int, BrokerEndpoint], leaders: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the log end offset of each partition whose leader answers. Raises nothing."""
        by_broker: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for partition, broker in leaders.items():
            by_broker[broker].append(partition)
        ends: dict[TopicPartition, int] = {}
        for broker in by_broker.keys() - endpoints.keys():
            self._silent[broker] = f"broker {broker} has no usable registration"
        asked = [
            (endpoints[broker], partitions)
            for broker, partitions in sorted(by_broker.items())
            if broker not in self._silent
        ]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="zkconsumer-log-ends") as pool:
            for answer in pool.map(self._ask, asked):
                ends |= answer
        for broker, partitions in by_broker.items():
            if broker in self._silent:
                self._unanswered[broker] += sum(one not in ends for one in partitions)
        return ends

    def notes(self) -> list[str]:
        """Return why some log ends are unknown."""
        notes = [
            f"{self._silent[broker]}: no log end of {_count(number)}"
            for broker, number in sorted(self._unanswered.items())
        ]
        return notes + [
            f"broker {broker} gave no log end of {_count(number)}, such as: {first}"
            for (broker, _), (first, number) in self._refused.items()
        ]

    def _ask(self, part: tuple[BrokerEndpoint, list[TopicPartition]]) -> dict[TopicPartition, int]:
        """Ask one broker, on a thread of its own."""
        endpoint, partitions = part
        ends: dict[TopicPartition, int] = {}
        connection = BrokerConnection(endpoint, CLIENT_ID, self._timeout, 0, self._security)
        try:
            for batch in _batches(partitions):
                for partition, answer in list_offsets(connection, batch, LATEST).items():
                    if isinstance(answer, int):
                        ends[partition] = answer
                    else:
                        kind = endpoint.broker_id, type(answer)
                        first, number = self._refused.get(kind, (answer, 0))
                        self._refused[kind] = first, number + 1
        except BrokerError as error:
            self._silent[endpoint.broker_id] = str(error)
        finally:
            connection.close()
        return ends


def _batches(partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    rest = iter(sorted(partitions))
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _count(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions != 1 else ''}"


_GROUP_THREADS = 8


def fetch_stored(
    endpoints: Sequence[BrokerEndpoint],
    wanted: Mapping[str, Sequence[TopicPartition]],
    timeout: float,
    security: KafkaSecurity | None = None,
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """Return the offsets in Kafka of each group that has any, and notes on failures.

    ``timeout``: seconds for each group. Raises nothing.
    """

    def ask(group: str) -> tuple[dict[TopicPartition, int], str | None]:
        client = GroupCoordinators(
            CLIENT_ID, lambda: endpoints, timeout, timeout, security=security
        )
        try:
            offsets = client.stored(group, wanted[group])
        except BrokerError as error:
            return {}, f"{error}: offsets of {group} in Kafka are not known"
        finally:
            client.close()
        return {tp: stored.offset for tp, stored in offsets.items()}, None

    with ThreadPoolExecutor(_GROUP_THREADS, thread_name_prefix="zkconsumer-stored") as pool:
        answers = list(pool.map(ask, wanted))
    stored = {group: offsets for group, (offsets, _) in zip(wanted, answers, strict=True)}
    return stored, [note for _, note in answers if note is not None]
