"""Print which consumer thread gets which partition.

The arguments are a strategy, members, and topics as ``TOPIC=PARTITIONS``. A member written as
``MEMBER:TOPIC,TOPIC`` subscribes to these topics only.
"""

from __future__ import annotations

import sys

from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
    thread_ids,
)
from zkconsumer.core.common.types import ConsumerThreadId


def main(strategy: str, *words: str) -> None:
    """Print one line for each member."""
    counts = {name: int(count) for name, eq, count in (w.partition("=") for w in words) if eq}
    members = {
        name: chosen for name, _, chosen in (w.partition(":") for w in words if "=" not in w)
    }
    threads: dict[str, list[ConsumerThreadId]] = {}
    for name, chosen in members.items():
        topics = dict.fromkeys(chosen.split(",") if chosen else counts, 1)
        for topic, ids in thread_ids(name, topics).items():
            threads.setdefault(topic, []).extend(ids)
    partitions = {topic: range(count) for topic, count in counts.items()}
    if strategy == "range":
        owned = assign_range(threads, partitions)
    else:
        owned = assign_roundrobin(threads, partitions, RoundRobinHash.DASH)
    for name in members:
        mine = sorted(str(tp) for tp, one in owned.items() if one.consumer == name)
        sys.stdout.write(f"{name}  {' '.join(mine)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
