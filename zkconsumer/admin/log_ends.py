"""What tools ask many brokers at a time: where logs end, and the offsets of groups in Kafka.

One thread for each broker, or group, so that none waits for another. Its requests use connections
of their own, which are closed at the end.
"""

from __future__ import annotations

from collections import defaultdict
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


def fetch_log_ends(
    endpoints: Mapping[int, BrokerEndpoint],
    leaders: Mapping[TopicPartition, int],
    timeout: float,
    security: KafkaSecurity | None = None,
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the next offset of each readable partition, and notes on the others.

    ``timeout``: seconds for each connection and answer. A broker that cannot be reached causes one
    note, and its partitions are missing. Nothing is raised.
    """
    by_broker: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition, broker in leaders.items():
        by_broker[broker].append(partition)
    ends: dict[TopicPartition, int] = {}
    notes: list[str] = []
    reachable: list[tuple[BrokerEndpoint, list[TopicPartition]]] = []
    for broker, partitions in sorted(by_broker.items()):
        if broker in endpoints:
            reachable.append((endpoints[broker], partitions))
        else:
            notes.append(
                f"broker {broker} leads {_count(partitions)} but has no usable registration"
            )
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="zkconsumer-log-ends") as pool:
        for answer, remarks in pool.map(
            lambda part: _ask(part[0], part[1], timeout, security), reachable
        ):
            ends |= answer
            notes += remarks
    return ends, notes


def _ask(
    endpoint: BrokerEndpoint,
    partitions: list[TopicPartition],
    timeout: float,
    security: KafkaSecurity | None,
) -> tuple[dict[TopicPartition, int], list[str]]:
    ends: dict[TopicPartition, int] = {}
    faults: defaultdict[type[BrokerError], list[BrokerError]] = defaultdict(list)
    connection = BrokerConnection(endpoint, CLIENT_ID, timeout, 0, security)
    try:
        for batch in _batches(partitions):
            for partition, answer in list_offsets(connection, batch, LATEST).items():
                if isinstance(answer, int):
                    ends[partition] = answer
                else:
                    faults[type(answer)].append(answer)
    except BrokerError as error:
        left = [partition for partition in partitions if partition not in ends]
        return ends, [f"{error}: no log end of {_count(left)}"]
    finally:
        connection.close()
    return ends, [
        f"broker {endpoint.broker_id} gave no log end of {_count(several)}, such as: {several[0]}"
        for several in faults.values()
    ]


def _batches(partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    rest = iter(sorted(partitions))
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _count(partitions: Sequence[object]) -> str:
    return f"{len(partitions)} partition{'s' if len(partitions) != 1 else ''}"


_GROUP_THREADS = 8


def fetch_stored(
    endpoints: Sequence[BrokerEndpoint],
    wanted: Mapping[str, Sequence[TopicPartition]],
    timeout: float,
    security: KafkaSecurity | None = None,
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """Return the offsets in Kafka of each group that has any, and notes on failures.

    ``timeout``: seconds for each group. Nothing is raised.
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
