"""``zkconsumer cluster address``, ``create-topic`` and ``send``: they need a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from zkconsumer.console.tables import count_option
from zkconsumer.errors import ClusterError
from zkconsumer.servers import background
from zkconsumer.servers.produce import send
from zkconsumer.servers.topics import at_brokers, in_zookeeper

dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=background.default_dir,
    help="Directory of the cluster.  [default: your own below ~/.local/state]",
)


@click.command()
@click.argument("which", type=click.Choice(["zookeeper", "bootstrap"]), default="zookeeper")
@dir_option
def address(which: str, directory: Path) -> None:
    """Print the address of ZooKeeper (the default) or the brokers."""
    state = background.status(directory.absolute())
    if which == "zookeeper" and not state.zookeeper:
        raise ClusterError(
            f"Kafka {state.kafka} runs without ZooKeeper: ask for the address of bootstrap"
        )
    click.echo(state.zookeeper if which == "zookeeper" else state.bootstrap)


@click.command(name="create-topic")
@click.argument("name")
@count_option("--partitions", default=1, most=10_000, help="How many partitions the topic has.")
@count_option(
    "--replication-factor",
    "replication",
    default=1,
    most=16,
    help="How many brokers have a copy of each partition; at most `cluster up --brokers`.",
)
@dir_option
def create_topic(name: str, partitions: int, replication: int, directory: Path) -> None:
    """Create the topic NAME."""
    state = background.status(directory.absolute())
    ports = [int(server.rpartition(":")[2]) for server in state.bootstrap.split(",")]
    if replication > len(ports):
        raise click.UsageError(
            f"--replication-factor {replication}: the cluster has {len(ports)} brokers; start one "
            "with more: cluster up --brokers N"
        )
    if state.zookeeper:
        in_zookeeper.create_topic(state.zookeeper, ports, name, partitions, replication, {})
    else:
        at_brokers.create_topic(ports, name, partitions, replication, {})
    click.echo(f"created topic {name} with {partitions} partitions", err=True)


@click.command(name="send")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--key",
    metavar="TEXT",
    help="Key of all messages.  [default: the line's place, FILE:LINE]",
)
@count_option("--partition", least=0, help="Send to this partition.  [default: the key decides]")
@dir_option
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
