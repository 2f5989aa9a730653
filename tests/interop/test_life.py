"""The life of mixed groups, for all combinations of releases, strategies and subscriptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# The consumer of 1.1.1 cannot read from a broker of 0.8, which does not know its requests.
PAIRS = [
    ("1.1.1", "3.9.1"),
    ("1.1.1", "1.1.1"),
    ("0.8.2.2", "3.9.1"),
    ("0.8.2.2", "1.1.1"),
    ("0.8.2.2", "0.8.2.2"),
]
CASES = [
    (order, store, kind, strategy, *pair)
    for order in ("jvm_first", "ours_first")
    for store in ("zookeeper", "kafka", "dual")
    for kind in ("static", "white_list", "black_list")
    for strategy in ("range", "roundrobin")
    for pair in PAIRS
    # The offset store does not affect the assignment.
    if store == "zookeeper" or (kind, strategy) == ("static", "range")
]


def live(group, first: str, second: str, kind: str) -> None:
    """Members of both sides join in pairs and leave one at a time. Topics and partitions are added.

    Messages are sent and delivered between any two changes. So at each change every partition has
    been read to its end.
    """
    topics = list(group.create_telling(4, 3))

    def step() -> None:
        group.settled()
        group.handed_over()
        group.send()
        group.once()

    group.send()
    group.start(first, 1, 2, kind, topics)
    step()
    group.start(second, 1, 1, kind, topics)
    step()
    group.start(first, 2, 1, kind, topics)
    group.start(second, 2, 2, kind, topics)
    step()
    group.grow(topics[0], 6)
    step()
    if kind != "static":
        group.create("c", 2)
        step()
    group.leave(f"{first}1")
    step()
    group.leave(f"{second}1")
    step()
    group.leave(f"{second}2")
    step()
    group.start(second, 3, 1, kind, topics)
    step()
    group.leave(f"{first}2")
    step()
    group.leave(f"{second}3")
    assert group.watch.members() == []
    assert group.owners() == {}
    assert group.stored() == group.ends()


@pytest.mark.parametrize(("order", "store", "kind", "strategy", "jvm", "broker"), CASES)
def test_life(
    clusters: Callable,
    jvms: Callable,
    groups: Callable,
    order: str,
    store: str,
    kind: str,
    strategy: str,
    jvm: str,
    broker: str,
) -> None:
    """With any first member and any subscription, both sides agree after each step, and every
    message is delivered. Each side continues at the other's offsets. A partition that moves was
    committed to its end before, so our members deliver nothing twice."""
    group = groups(clusters(broker), jvms(jvm), strategy=strategy, store=store)
    live(group, *("jp" if order == "jvm_first" else "pj"), kind)


@pytest.mark.parametrize("jvm", ["1.1.1", "0.8.2.2"])
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_life_of_the_scala_profile(
    clusters: Callable, jvms: Callable, groups: Callable, strategy: str, jvm: str
) -> None:
    """Members with the ``scala`` profile share a group with JVM members, too."""
    group = groups(clusters("1.1.1"), jvms(jvm), strategy=strategy, profile="scala")
    live(group, "j", "p", "static")
