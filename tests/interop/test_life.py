"""The life of mixed groups, over the whole matrix of releases, strategies and subscriptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# The consumer of 1.1.1 reads from no broker of 0.8: it sends requests that one does not know.
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
    # Where offsets are kept has nothing to do with who gets what.
    if store == "zookeeper" or (kind, strategy) == ("static", "range")
]

SAMPLE = [
    "jvm_first-zookeeper-static-range-1.1.1-3.9.1",
    "ours_first-zookeeper-white_list-roundrobin-1.1.1-1.1.1",
    "ours_first-dual-static-range-1.1.1-3.9.1",
    "jvm_first-zookeeper-black_list-range-0.8.2.2-0.8.2.2",
    "ours_first-zookeeper-static-roundrobin-0.8.2.2-3.9.1",
]


def live(group, first: str, second: str, kind: str) -> None:
    """Members of both sides come, two by two, and go, one by one; topics and partitions come.

    Between any two changes messages are sent and delivered, so that each change hands over what
    was read to its end.
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


@pytest.mark.sampled(*SAMPLE)
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
    """Whoever comes first and whatever they subscribe to, both sides agree after each step, every
    message is delivered, and the offsets of one side are where the other goes on: a partition that
    changes hands was committed to its end before, so ours deliver nothing a second time."""
    group = groups(clusters(broker), jvms(jvm), strategy=strategy, store=store)
    live(group, *("jp" if order == "jvm_first" else "pj"), kind)


@pytest.mark.sampled("range-1.1.1")
@pytest.mark.parametrize("jvm", ["1.1.1", "0.8.2.2"])
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_life_of_the_scala_profile(
    clusters: Callable, jvms: Callable, groups: Callable, strategy: str, jvm: str
) -> None:
    """Our members with the ``scala`` profile share a group with JVM members, as those with the
    default profile do."""
    group = groups(clusters("1.1.1"), jvms(jvm), strategy=strategy, profile="scala")
    live(group, "j", "p", "static")
