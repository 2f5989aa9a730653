"""``zkconsumer trace``: one member on the coordinator, with every request and answer as it happens.

The main thread waits and leaves; a second thread joins, because that may block while a broker does
not answer. Requests are printed by the threads that send them.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future
from typing import Any

import click

from zkconsumer.cli.consume.command import consumer_options, key_values
from zkconsumer.cli.member.trace_format import lines
from zkconsumer.config.properties import read_properties
from zkconsumer.console.signals import Stop
from zkconsumer.console.times import duration_option
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import RebalanceFailedError
from zkconsumer.runtime.delivery.streams import KafkaStream


@click.command()
@click.option(
    "--bootstrap-server",
    required=True,
    metavar="HOST:PORT[,..]",
    envvar="ZKCONSUMER_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="Brokers through which to find the cluster and the group's coordinator.",
)
@click.option("--group", required=True, help="Join this group.")
@click.option(
    "--topic",
    "topics",
    required=True,
    multiple=True,
    help="Subscribe to this topic. May be repeated.",
)
@duration_option("--seconds", help="Leave the group after this time.")
@click.option("--read", is_flag=True, help="Read messages and commit their offsets.")
@consumer_options("--command-config")
def trace(
    bootstrap_server: str,
    group: str,
    topics: tuple[str, ...],
    seconds: float | None,
    read: bool,
    file: str | None,
    properties: tuple[str, ...],
) -> None:
    """Show the requests between a member and its coordinator.

    The command joins the group as a member, and owns its share of the partitions while it runs.
    Without --read it neither reads nor commits, and the next owner reads the messages. Ctrl-C and
    SIGTERM make it leave the group. Run two traces of one group to see a rebalance.
    """
    config: dict[str, object] = {"heartbeat.interval.ms": "1000"}
    if file is not None:
        config |= {entry.key: entry.value for entry in read_properties(file)[0]}
    config |= key_values(properties)
    config |= {"bootstrap.servers": bootstrap_server, "group.id": group}
    if not read:
        config["auto.commit.enable"] = "false"
    begun = time.monotonic()
    lock = threading.Lock()
    unprinted: list[OSError] = []
    ended = Stop()
    ended.listen()

    def show(broker: BrokerEndpoint, request: Any, answer: Any) -> None:
        with lock:
            if unprinted:
                return
            try:
                click.echo("\n".join(lines(time.monotonic() - begun, broker, request, answer)))
            except OSError as error:  # the reader has exited, or the disk is full
                unprinted.append(error)
                ended.set()

    with CoordinatorConsumerConnector(config, on_exchange=show) as member:
        joining: Future[None] = Future()

        def join() -> None:
            try:
                streams = member.create_message_streams(dict.fromkeys(topics, 1))
                if read:
                    for stream in (stream for some in streams.values() for stream in some):
                        threading.Thread(target=_drain, args=(stream,), daemon=True).start()
                joining.set_result(None)
            except BaseException as error:  # noqa: BLE001 - the main thread raises it again
                joining.set_exception(error)
                ended.set()

        threading.Thread(target=join, name="join", daemon=True).start()
        ended.wait(seconds)
        if unprinted:
            raise unprinted[0]
        if joining.done():
            joining.result()
        elif ended.number == signal.SIGINT:
            raise click.Abort
        else:
            raise RebalanceFailedError(
                f"--bootstrap-server {bootstrap_server}: this member was stopped before "
                f"it joined group {group}: check the address, and security.protocol in "
                "--command-config"
            )


def _drain(stream: KafkaStream) -> None:
    for _ in stream:
        pass
