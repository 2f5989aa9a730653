"""Topics through ZooKeeper, which brokers of every generation support.

Each function opens its own short ZooKeeper session; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from zkconsumer.errors import ClusterError
from zkconsumer.servers.servers import read_metadata
from zkconsumer.servers.waiting import wait_until

_DONE_SECONDS = 60.0


@contextmanager
def zookeeper_session(zookeeper: str) -> Iterator[KazooClient]:
    """Yield a connected kazoo client for ``HOST:PORT[/CHROOT]``, and close its session at the end.

    kazoo errors are raised as ``ClusterError``.
    """
    client = KazooClient(zookeeper, timeout=10.0)
    try:
        client.start(timeout=15.0)
        yield client
    except (KazooException, KazooTimeoutError) as error:
        raise ClusterError(
            f"ZooKeeper at {zookeeper}: {str(error) or type(error).__name__}"
        ) from error
    finally:
        client.stop()
        client.close()


def create_topic(
    zookeeper: str,
    ports: Sequence[int],
    name: str,
    partitions: int,
    replication: int,
    config: Mapping[str, str],
) -> None:
    """Create a topic, with replicas assigned in rotation. Return when every broker knows its
    leaders."""
    with zookeeper_session(zookeeper) as client:
        replicas = _replicas(client, 0, partitions, replication)
        content = {"version": 1, "config": dict(config)}
        settings, path = f"/config/topics/{name}", f"/brokers/topics/{name}"
        if client.exists(path) is not None:
            raise ClusterError(f"topic {name} already exists")
        _write(client, settings, content)
        try:
            client.create(path, _json({"version": 1, "partitions": replicas}))
        except NodeExistsError:
            raise ClusterError(f"topic {name} already exists") from None
    wait_for_leaders(ports, name, partitions)


def add_partitions(zookeeper: str, ports: Sequence[int], name: str, total: int) -> None:
    """Increase a topic's partitions to ``total``, and return when all have leaders."""
    path = f"/brokers/topics/{name}"
    with zookeeper_session(zookeeper) as client:
        try:
            data, stat = client.get(path)
        except NoNodeError:
            raise ClusterError(f"topic {name} does not exist") from None
        content = json.loads(data)
        current = content["partitions"]
        if total <= len(current):
            raise ClusterError(f"topic {name} has {len(current)} partitions: give a larger number")
        replication = len(current["0"])
        current.update(_replicas(client, len(current), total, replication))
        client.set(path, _json(content), version=stat.version)
    wait_for_leaders(ports, name, total)


def delete_topic(zookeeper: str, ports: Sequence[int], name: str) -> None:
    """Delete a topic. Return when it is gone from ZooKeeper and from every broker."""
    path, order = f"/brokers/topics/{name}", f"/admin/delete_topics/{name}"
    with zookeeper_session(zookeeper) as client:
        if client.exists(path) is None:
            raise ClusterError(f"topic {name} does not exist")
        client.ensure_path("/admin/delete_topics")
        try:
            client.create(order)
        except NodeExistsError:
            pass  # another process asked for it too
        wait_until(
            lambda: client.exists(path) is None and client.exists(order) is None,
            _DONE_SECONDS,
            f"topic {name} is gone from ZooKeeper",
        )
    wait_until_unknown(ports, name)


def _replicas(client: KazooClient, first: int, end: int, replication: int) -> dict[str, list[int]]:
    if end <= first:
        raise ClusterError(f"a topic needs at least one partition, not {end}")
    brokers = sorted(int(broker) for broker in client.get_children("/brokers/ids"))
    if not 1 <= replication <= len(brokers):
        raise ClusterError(
            f"replication factor {replication} is not between 1 and {len(brokers)}, the number of "
            "brokers that are up"
        )
    return {
        str(partition): [brokers[(partition + i) % len(brokers)] for i in range(replication)]
        for partition in range(first, end)
    }


def _write(client: KazooClient, path: str, content: object) -> None:
    try:
        client.create(path, _json(content), makepath=True)
    except NodeExistsError:
        client.set(path, _json(content))


def wait_for_leaders(ports: Sequence[int], name: str, partitions: int) -> None:
    """Return when every broker knows a leader for each partition. Raises ``ClusterError``."""

    def led_everywhere() -> bool:
        for port in ports:
            view = read_metadata(port)
            leaders = view.leaders.get(name, {}) if view else {}
            if len(leaders) != partitions or -1 in leaders.values():
                return False
        return True

    wait_until(led_everywhere, _DONE_SECONDS, f"every partition of topic {name} has a leader")


def wait_until_unknown(ports: Sequence[int], name: str) -> None:
    """Return when no broker has the topic any more. Raises ``ClusterError``."""

    def unknown_everywhere() -> bool:
        views = [read_metadata(port) for port in ports]
        return all(view is not None and name not in view.leaders for view in views)

    wait_until(unknown_everywhere, _DONE_SECONDS, f"topic {name} is gone from the brokers")


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
