"""``zkconsumer perf``: how fast a member reads a topic.

The main thread joins the group, waits and prints. Each stream has a thread that counts its
messages. Nothing else is done with a message, so the result is the speed of the library alone.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Sequence
from datetime import datetime

import click

from zkconsumer.cli.consume.command import (
    consumer_options,
    delete_generated,
    given_by,
    set_up_logging,
)
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.signals import EXIT_SIGNAL, SignalledError, signals_raise
from zkconsumer.console.tables import count_option
from zkconsumer.console.times import duration_option
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import CommitFailedError, ConsumerTimeoutError
from zkconsumer.runtime.delivery.streams import KafkaStream

_MIB = 1024 * 1024
_AT_ONCE = 1000
"""Number of messages after which a thread adds its count to the total, when reading single
messages."""


@click.command()
@click.option("--zookeeper", metavar="HOST:PORT[,..][/CHROOT]", help="Join a group in ZooKeeper.")
@click.option(
    "--bootstrap-server", metavar="HOST:PORT[,..]", help="Join a group on the coordinator."
)
@click.option("--topic", required=True, help="Read this topic.")
@count_option("--messages", required=True, help="Exit after this many messages.")
@click.option("--group", help="Sets group.id.  [default: a new group]")
@count_option(
    "--threads", default=1, most=1000, help="How many streams to use. Each has its own thread."
)
@count_option("--batch", help="Read lists of up to N messages instead of single ones.")
@click.option("--arrow", is_flag=True, help="Read Arrow columns instead of messages.")
@duration_option(
    "--timeout",
    least=0.001,
    default=10.0,
    bare="ms",
    help="Exit if no message arrives for this long. A bare number is milliseconds, as in Kafka.",
)
@consumer_options()
@click.option("--hide-header", is_flag=True, help="Print only the figures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("-v", "--verbose", count=True, help="Log progress to stderr; -vv logs all details.")
def perf(
    zookeeper: str | None,
    bootstrap_server: str | None,
    topic: str,
    messages: int,
    group: str | None,
    threads: int,
    batch: int | None,
    arrow: bool,
    timeout: float,
    file: str | None,
    properties: tuple[str, ...],
    hide_header: bool,
    as_json: bool,
    verbose: int,
) -> int:
    """Measure how fast a topic is read.

    The columns are those of kafka-consumer-perf-test. The rebalance time ends when the member has
    joined. The rest is fetch time. One MB is 1,048,576 bytes of keys and values.

    The exit status is 1 if fewer than --messages were read before the timeout.
    """
    if (zookeeper is None) == (bootstrap_server is None):
        raise click.UsageError("give either --zookeeper or --bootstrap-server")
    if arrow:
        no_effect("--arrow", "batch")
    if as_json:
        no_effect("--json", "hide_header")
    timeout_ms = round(timeout * 1000)
    set_up_logging(verbose)
    on_brokers = zookeeper is None
    reset = "auto.offset.reset=" + ("earliest" if on_brokers else "smallest")
    defaults = (reset, "enable.auto.commit=false") if on_brokers else (reset,)
    given, made_up = given_by(
        on_brokers=on_brokers,
        zookeeper=zookeeper,
        bootstrap=bootstrap_server,
        group=group,
        file=file,
        properties=(*defaults, *properties),
        timeout_ms=timeout_ms,
        prefix="perf-consumer",
    )
    connector: ZookeeperConsumerConnector | CoordinatorConsumerConnector
    generated: ConsumerConfig | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if on_brokers:
            connector = CoordinatorConsumerConnector(CoordinatorConfig.parse(given))
        else:
            config = ConsumerConfig.parse(given)
            connector = ZookeeperConsumerConnector(config)
            generated = config if made_up else None
    counter = _Counter(messages, timeout_ms / 1000)
    begun, clock = time.time(), time.perf_counter()
    try:
        with signals_raise() as check_signals:
            try:
                streams = connector.create_message_streams({topic: threads})[topic]
                joined = time.perf_counter()
                counter.count(streams, 0 if arrow else batch)
                check_signals()
            finally:
                _leave(connector, generated)
    except SignalledError as signalled:
        return EXIT_SIGNAL + signalled.number
    if counter.failure is not None:
        raise counter.failure
    columns = _columns(begun, joined - clock, counter.ended - joined, counter)
    if as_json:
        click.echo(json.dumps({name: value for name, value, _ in columns}))
    else:
        if not hide_header:
            click.echo(", ".join(name for name, _, _ in columns))
        click.echo(", ".join(text for _, _, text in columns))
    if counter.messages < messages:
        click.echo(
            f"warning: no message arrived within {timeout_ms} ms; {messages - counter.messages} of "
            f"{messages} are missing",
            err=True,
        )
        return 1
    return 0


def _leave(
    connector: ZookeeperConsumerConnector | CoordinatorConsumerConnector,
    generated: ConsumerConfig | None,
) -> None:
    try:
        connector.shutdown()
    except CommitFailedError as error:
        click.echo(f"warning: {error}", err=True)
    if generated is not None:
        delete_generated(generated)


class _Counter:
    """Counts messages, on one thread for each stream, until there are ``wanted`` messages or none
    arrive."""

    def __init__(self, wanted: int, timeout: float) -> None:
        self.messages = 0
        self.bytes = 0
        self.ended = 0.0
        """``time.perf_counter()`` at the last message."""
        self.failure: Exception | None = None
        self._wanted = wanted
        self._timeout = timeout
        self._lock = threading.Lock()
        self._left = 0
        self._over = threading.Event()

    def count(self, streams: Sequence[KafkaStream], batch: int | None) -> None:
        """Read until the end: single messages, lists of up to ``batch``, or Arrow columns if
        ``batch`` is 0."""
        self.ended = time.perf_counter()
        self._left = len(streams)
        for stream in streams:
            threading.Thread(
                target=self._run, args=(stream, batch), name="perf", daemon=True
            ).start()
        self._over.wait()

    def _run(self, stream: KafkaStream, batch: int | None) -> None:
        try:
            if batch is None:
                self._singly(stream)
            elif not batch:
                from pyarrow import compute

                for columns in stream.arrow_batches():
                    sizes = [compute.binary_length(columns[name]) for name in ("key", "value")]
                    size = sum(compute.sum(each).as_py() or 0 for each in sizes)
                    if self._add(columns.num_rows, size):
                        break
            else:
                for messages in stream.batches(batch):
                    size = 0
                    for message in messages:
                        size += len(message.raw_value or b"") + len(message.raw_key or b"")
                    if self._add(len(messages), size):
                        break
        except ConsumerTimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            self.failure = error
        with self._lock:
            self._left -= 1
            if not self._left or self.failure is not None:
                self._over.set()

    def _singly(self, stream: KafkaStream) -> None:
        at_once = min(_AT_ONCE, self._wanted)
        count = size = 0
        try:
            for message in stream:
                count += 1
                size += len(message.raw_value or b"") + len(message.raw_key or b"")
                if count == at_once:
                    if self._add(count, size):
                        return
                    count = size = 0
        except ConsumerTimeoutError:
            if count:
                self._add(count, size, waited=self._timeout)

    def _add(self, count: int, size: int, waited: float = 0.0) -> bool:
        """Add messages; the last arrived after ``waited`` seconds. Return whether there are
        enough."""
        with self._lock:
            if self.messages < self._wanted:
                self.ended = time.perf_counter() - waited
            self.messages += count
            self.bytes += size
            enough = self.messages >= self._wanted
        if enough:
            self._over.set()
        return enough


def _columns(
    begun: float, joining: float, fetching: float, counter: _Counter
) -> list[tuple[str, str | float, str]]:
    """Return name, value and text of each column."""
    total = max(joining + fetching, 1e-9)
    mib = counter.bytes / _MIB
    times = [
        datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S:") + f"{int(at * 1000) % 1000:03d}"
        for at in (begun, begun + total)
    ]
    fetching = max(fetching, 1e-9)
    rates = {
        "data.consumed.in.MB": mib,
        "MB.sec": mib / total,
        "data.consumed.in.nMsg": counter.messages,
        "nMsg.sec": counter.messages / total,
        "rebalance.time.ms": round(joining * 1000),
        "fetch.time.ms": round(fetching * 1000),
        "fetch.MB.sec": mib / fetching,
        "fetch.nMsg.sec": counter.messages / fetching,
    }
    return [
        ("start.time", times[0], times[0]),
        ("end.time", times[1], times[1]),
        *(
            (name, value, str(value) if isinstance(value, int) else f"{value:.4f}")
            for name, value in rates.items()
        ),
    ]
