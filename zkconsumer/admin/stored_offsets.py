"""Asks Kafka's offset coordinators for the offsets of groups, several groups at a time.

Each group's requests use their own connections, which are closed at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from zkconsumer.admin.log_ends import CLIENT_ID
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError

_THREADS = 8


def fetch_stored(
    endpoints: Sequence[BrokerEndpoint],
    wanted: Mapping[str, Sequence[TopicPartition]],
    timeout: float,
    security: KafkaSecurity | None = None,
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """Return each group's offsets in Kafka, only where there is one, and notes on failures.

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

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="zkconsumer-stored") as pool:
        answers = list(pool.map(ask, wanted))
    stored = {group: offsets for group, (offsets, _) in zip(wanted, answers, strict=True)}
    return stored, [note for _, note in answers if note is not None]
