"""``zkconsumer cluster``: a real ZooKeeper and Kafka on this machine, to experiment with."""

from __future__ import annotations

import json
from pathlib import Path

import click

from zkconsumer.cli.laboratory import cluster_topics
from zkconsumer.console.tables import count_option
from zkconsumer.errors import ClusterError
from zkconsumer.servers import KAFKA_LINES, background
from zkconsumer.servers.jars import KRAFT_LINES

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


@click.group()
def cluster() -> None:
    """Start and stop real servers of Kafka, with ZooKeeper or KRaft.

    They listen on free ports of 127.0.0.1. Java is required. The first start of each Kafka release
    downloads its jars with Maven.
    """


for _command in (cluster_topics.address, cluster_topics.create_topic, cluster_topics.send_lines):
    cluster.add_command(_command)


@cluster.command()
@cluster_topics.dir_option
@click.option(
    "--kafka",
    type=click.Choice(list(KAFKA_LINES)),
    default="3.9",
    show_default=True,
    help="Release of Kafka. ZooKeeper is the one that it was released with. Kafka 4 has none.",
)
@count_option("--brokers", default=1, most=16, help="How many brokers to start.")
@_json_option
def up(directory: Path, kafka: str, brokers: int, as_json: bool) -> None:
    """Start an empty cluster and leave it running until `down`."""
    directory = directory.absolute()
    zookeeper = "" if kafka in KRAFT_LINES else "ZooKeeper and "
    click.echo(f"starting {zookeeper}{brokers} x Kafka {KAFKA_LINES[kafka]} ...", err=True)
    state = background.up(directory, kafka, brokers)
    _show_addresses(state, as_json)
    click.echo(f"ready; logs in {directory / 'logs'}; stop it with: cluster down", err=True)


@cluster.command()
@cluster_topics.dir_option
@_json_option
def status(directory: Path, as_json: bool) -> None:
    """Show the cluster. The exit status is 1 unless all servers run."""
    state = background.status(directory.absolute())
    _show_addresses(state, as_json)
    for server in state.servers:
        shown = f"pid {server.pid}, port {server.port}" if server.alive else "not running"
        click.echo(f"{server.name}: {shown}", err=True)
    if not state.up:
        dead = ", ".join(server.name for server in state.servers if not server.alive)
        raise ClusterError(f"not running: {dead} (logs in {directory.absolute() / 'logs'})")


@cluster.command()
@cluster_topics.dir_option
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
