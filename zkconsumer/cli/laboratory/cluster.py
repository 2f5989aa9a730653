"""``zkconsumer cluster``: a real ZooKeeper and Kafka on this machine, to experiment with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from zkconsumer.console.tables import count_option
from zkconsumer.errors import ClusterError
from zkconsumer.servers import KAFKA_LINES, background
from zkconsumer.servers.jars import KRAFT_LINES
from zkconsumer.servers.produce import send
from zkconsumer.servers.topics import at_brokers, in_zookeeper

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=background.default_dir,
    help="Directory of the cluster. [default: one per user below ~/.local/state]",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


@click.group()
def cluster() -> None:
    """Start and stop real Kafka servers, with ZooKeeper or KRaft.

    They listen on free ports of 127.0.0.1. Java is required. The first start of each Kafka release
    downloads its jars with Maven.
    """


@cluster.command()
@_dir_option
@click.option(
    "--kafka",
    type=click.Choice(list(KAFKA_LINES)),
    default="3.9",
    show_default=True,
    help="Kafka release, started with the matching ZooKeeper release. Kafka 4 needs no ZooKeeper.",
)
@count_option("--brokers", default=1, most=16, help="How many brokers to start.")
@_json_option
def up(directory: Path, kafka: str, brokers: int, as_json: bool) -> None:
    """Start an empty cluster that runs until `cluster down`."""
    directory = directory.absolute()
    zookeeper = "" if kafka in KRAFT_LINES else "ZooKeeper and "
    click.echo(f"starting {zookeeper}{brokers} x Kafka {KAFKA_LINES[kafka]} ...", err=True)
    state = background.up(directory, kafka, brokers)
    _show_addresses(state, as_json)
    click.echo(f"ready; logs in {directory / 'logs'}; stop it with: cluster down", err=True)


@cluster.command()
@_dir_option
@_json_option
def status(directory: Path, as_json: bool) -> None:
    """Show the cluster. The exit status is 1 unless all servers are running."""
    state = background.status(directory.absolute())
    _show_addresses(state, as_json)
    for server in state.servers:
        shown = f"pid {server.pid}, port {server.port}" if server.alive else "not running"
        click.echo(f"{server.name}: {shown}", err=True)
    if not state.up:
        dead = ", ".join(server.name for server in state.servers if not server.alive)
        raise ClusterError(f"not running: {dead} (logs in {directory.absolute() / 'logs'})")


@cluster.command()
@_dir_option
def down(directory: Path) -> None:
    """Stop the cluster, if one is running, and delete its data."""
    directory = directory.absolute()
    if background.down(directory):
        click.echo(f"stopped the cluster in {directory}", err=True)
    else:
        click.echo(f"no cluster was up in {directory}", err=True)


def _show_addresses(state: background.ClusterState, as_json: bool) -> None:
    addresses = {"bootstrap": state.bootstrap}
    if state.zookeeper:
        addresses = {"zookeeper": state.zookeeper, **addresses}
    if as_json:
        click.echo(json.dumps(addresses))
    else:
        for name, address in addresses.items():
            click.echo(f"{name}: {address}")


@cluster.command()
@click.argument("which", type=click.Choice(["zookeeper", "bootstrap"]), default="zookeeper")
@_dir_option
def address(which: str, directory: Path) -> None:
    """Print the address of ZooKeeper (the default) or the brokers."""
    state = background.status(directory.absolute())
    if which == "zookeeper" and not state.zookeeper:
        raise ClusterError(
            f"Kafka {state.kafka} has no ZooKeeper: run `zkconsumer cluster address bootstrap`"
        )
    click.echo(state.zookeeper if which == "zookeeper" else state.bootstrap)


@cluster.command(name="create-topic")
@click.argument("name")
@count_option("--partitions", default=1, most=10_000, help="How many partitions the topic has.")
@count_option(
    "--replication-factor",
    "replication",
    default=1,
    most=16,
    help="How many brokers have a copy of each partition; at most `cluster up --brokers`.",
)
@_dir_option
def create_topic(name: str, partitions: int, replication: int, directory: Path) -> None:
    """Create the topic NAME."""
    state = background.status(directory.absolute())
    ports = [int(server.rpartition(":")[2]) for server in state.bootstrap.split(",")]
    if replication > len(ports):
        raise click.UsageError(
            f"--replication-factor {replication}: the cluster has {len(ports)} brokers; start a "
            "cluster with more: cluster up --brokers N"
        )
    if state.zookeeper:
        in_zookeeper.create_topic(state.zookeeper, ports, name, partitions, replication, {})
    else:
        at_brokers.create_topic(ports, name, partitions, replication, {})
    click.echo(f"created topic {name} with {partitions} partitions", err=True)


@cluster.command(name="send")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--key",
    metavar="TEXT",
    help="Key of all messages.  [default: the line's position, FILE:LINE]",
)
@count_option("--partition", least=0, help="Send to this partition.  [default: the key decides]")
@_dir_option
def send_lines(
    topic_name: str, file: BinaryIO, key: str | None, partition: int | None, directory: Path
) -> None:
    """Send each line of FILE, or of standard input, as a message."""
    state = background.status(directory.absolute())

    def messages() -> Iterator[tuple[bytes, bytes]]:
        for number, line in enumerate(file, 1):
            text = f"{file.name}:{number}" if key is None else key
            yield text.encode(), line.rstrip(b"\r\n")

    sent = send(state.bootstrap, topic_name, messages(), partition=partition)
    click.echo(f"sent {sum(sent.values())} messages to {topic_name}", err=True)
