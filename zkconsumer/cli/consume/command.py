"""``zkconsumer consume``: a member of a group, or a reader of one partition, that prints messages.

The main thread joins the group, waits for the end, and leaves; each stream has a thread that
writes. A line is written under a lock and flushed before its message counts as consumed.
"""

from __future__ import annotations

import logging
import queue
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from zkconsumer.admin.change import delete
from zkconsumer.admin.reads import children
from zkconsumer.cli.consume.file_sink import FORMATS, FileSink, FlushBeforeRelease
from zkconsumer.cli.consume.formatter import message_format
from zkconsumer.cli.consume.output import Printer
from zkconsumer.cli.consume.partition import messages_of
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.config.key_table import Given, given_in
from zkconsumer.config.properties import read_properties
from zkconsumer.config.security_keys import SECRETS
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.console.exclusive import at_most_one, no_effect, only_with
from zkconsumer.console.signals import EXIT_SIGNAL, SignalledError, signals_raise
from zkconsumer.console.tables import chosen, count_option
from zkconsumer.console.times import duration_option
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.topic_filter import Blacklist, Whitelist
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, GroupPaths
from zkconsumer.errors import (
    BrokerUnavailableError,
    CommitFailedError,
    ConfigError,
    ConsumerTimeoutError,
    GroupError,
    UnknownGroupError,
    ZooKeeperError,
)
from zkconsumer.prometheus import start_http_server
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.zk.blocking import BlockingZk

_LOOK_S = 0.2
"""Seconds between checks whether a file is due, for streams without messages."""

_RANDOM = random.SystemRandom()
Output = Printer | FileSink
Connector = ZookeeperConsumerConnector | CoordinatorConsumerConnector

_KRAFT = (
    "If the brokers run without ZooKeeper (KRaft), set bootstrap.servers and "
    "zkconsumer.brokers=bootstrap"
)

Command = TypeVar("Command", bound=Callable[..., object])


def consumer_options(*more: str) -> Callable[[Command], Command]:
    """Add ``--consumer-config`` (given as ``file``) and ``--consumer-property`` (``properties``).
    ``more``: other names of the first option."""
    file = click.option(
        *more,
        "--consumer-config",
        "--consumer.config",
        "file",
        metavar="FILE",
        help="Java .properties file with the consumer's configuration.",
    )
    properties = click.option(
        "--consumer-property",
        "properties",
        metavar="KEY=VALUE",
        multiple=True,
        help="A key of the consumer's configuration. It overrides the file. May be repeated.",
    )
    return lambda command: file(properties(command))


@click.command()
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,..][/CHROOT]",
    envvar="ZKCONSUMER_ZOOKEEPER",
    show_envvar=True,
    help="Join a group in this ZooKeeper. Sets zookeeper.connect.",
)
@click.option(
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT[,..]",
    envvar="ZKCONSUMER_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="Without --zookeeper, join a group on the coordinator of these brokers. Sets "
    "bootstrap.servers.",
)
@click.option("--group", help="Sets group.id.  [default: a new group that leaves nothing behind]")
@click.option("--topic", help="Read this topic.")
@click.option(
    "--whitelist",
    "--include",
    metavar="REGEX",
    help="Read the topics whose whole name matches this Java regex.",
)
@click.option(
    "--blacklist",
    metavar="REGEX",
    help="Read the topics whose whole name does not match this Java regex.",
)
@count_option(
    "--partition",
    least=0,
    help="Read this partition of --topic only, without a group. Needs --bootstrap-server.",
)
@click.option(
    "--offset",
    metavar="earliest|latest|N",
    help="With --partition: where to start.  [default: latest]",
)
@count_option(
    "--streams", default=1, most=1000, help="How many streams to use. Each has its own thread."
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the first message. In ZooKeeper, this applies to new groups only; on brokers, "
    "to partitions without a committed offset.",
)
@count_option("--max-messages", help="Exit after this many messages.")
@duration_option(
    "--timeout-ms",
    "timeout",
    bare="ms",
    help="Exit if no message arrives for this long. A bare number is milliseconds, as in Kafka.",
)
@consumer_options()
@click.option(
    "--property",
    "formatting",
    metavar="KEY=VALUE",
    multiple=True,
    help="Format of a line, as in Kafka: print.key, print.partition, print.offset, "
    "print.timestamp, print.headers, print.value (true or false), key.separator, line.separator, "
    "headers.separator, null.literal. May be repeated.",
)
@click.option(
    "--formatter",
    metavar="NAME",
    help="How to write a message: default, noop (writes nothing), or MODULE:FUNCTION, a "
    "function that takes a MessageAndMetadata and returns bytes.  [default: default]",
)
@click.option(
    "--key-deserializer",
    metavar="TYPE",
    help="With --property print.key=true: string, short, integer, long, float, double, bytes, "
    "Kafka's class for that type, or MODULE:FUNCTION, a function that takes bytes.  "
    "[default: bytes as they are]",
)
@click.option("--value-deserializer", metavar="TYPE", help="Like --key-deserializer, for values.")
@click.option(
    "--skip-message-on-error",
    "skip",
    is_flag=True,
    help="If a message cannot be formatted, print an error to stderr and continue with the next "
    "message.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["value", "json", *FORMATS]),
    default="value",
    show_default=True,
    help="json: one object per line; bytes that are not UTF-8 appear as {'base64': ...}. arrow and "
    "parquet: files in --out instead of lines.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for Arrow or Parquet files.",
)
@count_option("--file-rows", default=500_000, help="Finish a file after this many messages.")
@duration_option(
    "--file-seconds",
    default=60.0,
    help="Finish a file when its first message is this old, even with fewer messages.",
)
@count_option(
    "--metrics-port",
    metavar="PORT",
    least=0,
    most=65535,
    help="Serve Prometheus metrics on this port of 127.0.0.1; 0 chooses a free port.",
)
@click.option("--strict", is_flag=True, help="Treat unknown configuration keys as errors.")
@click.option("-v", "--verbose", count=True, help="Log progress to stderr; -vv logs all details.")
def consume(
    zookeeper: str | None,
    bootstrap: str | None,
    group: str | None,
    topic: str | None,
    whitelist: str | None,
    blacklist: str | None,
    partition: int | None,
    offset: str | None,
    streams: int,
    from_beginning: bool,
    max_messages: int | None,
    timeout: float | None,
    file: str | None,
    properties: tuple[str, ...],
    formatting: tuple[str, ...],
    formatter: str | None,
    key_deserializer: str | None,
    value_deserializer: str | None,
    skip: bool,
    form: str,
    out: Path | None,
    file_rows: int,
    file_seconds: float,
    metrics_port: int | None,
    strict: bool,
    verbose: int,
) -> int:
    """Join a group and print the values of messages, one per line.

    The group is in ZooKeeper with --zookeeper, and in Kafka with --bootstrap-server alone. The
    options are those of kafka-console-consumer.

    Messages go to stdout, everything else to stderr. When the command leaves the group, it commits
    the offsets of the messages that it printed, even after Ctrl-C, SIGTERM or a closed pipe.

    With --format arrow or parquet, files are written to --out instead. Offsets are committed when a
    file is complete and on disk, so a crash repeats at most the messages of one file. A file
    whose name begins with a dot is incomplete.

    The exit status is 1 after a timeout without any message, if the last commit failed, or if the
    servers cannot be reached.
    """
    zookeeper, bootstrap = chosen(zookeeper, bootstrap)
    if sum(choice is not None for choice in (topic, whitelist, blacklist)) != 1:
        raise click.UsageError("give exactly one of --topic, --whitelist and --blacklist")
    if (form in FORMATS) != (out is not None):
        raise click.UsageError(
            "--out DIR requires --format arrow or parquet, and these require --out DIR"
        )
    if out is None:
        only_with("--format arrow or parquet", "file_rows", "file_seconds")
    else:
        no_effect("--out", "skip")
    line = message_format(form, formatting, formatter, key_deserializer, value_deserializer)
    if partition is None:
        only_with("--partition", "offset")
    else:
        no_effect("--partition", "group", "out", "streams", "metrics_port")
        if from_beginning and offset is not None:
            at_most_one(("--from-beginning", "--offset"))
    set_up_logging(verbose)
    on_brokers = bootstrap is not None and zookeeper is None
    named = _names_zookeeper(file, properties)
    if file is None and zookeeper is None and bootstrap is None and not named:
        raise click.UsageError(
            "give --zookeeper for a group in ZooKeeper, or --bootstrap-server for one in Kafka"
        )
    on_brokers = on_brokers and not named
    if out is not None:
        commits = "enable.auto.commit" if on_brokers else "auto.commit.enable"
        properties = (*properties, f"{commits}=false")
    if on_brokers:
        only_with("--zookeeper", "strict")
    given, generated = given_by(
        on_brokers=on_brokers,
        zookeeper=zookeeper,
        bootstrap=bootstrap,
        group=group,
        file=file,
        properties=properties,
        from_beginning=from_beginning,
        timeout_ms=None if timeout is None else round(timeout * 1000),
    )
    config = CoordinatorConfig.parse(given) if on_brokers else ConsumerConfig.parse(given, strict)
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)

    def open_streams(connector: Connector) -> list[KafkaStream]:
        if isinstance(output, FileSink):
            output.commit = connector.commit_offsets
            connector.set_consumer_rebalance_listener(FlushBeforeRelease(output))
        if topic is not None:
            # DEVIATION-26: the JVM's tool registers --topic as a white list, that is, as a regex.
            return connector.create_message_streams({topic: streams})[topic]
        topics = Blacklist(blacklist) if blacklist is not None else Whitelist(whitelist or "")
        return connector.create_message_streams_by_filter(topics, streams)

    if whitelist is not None:
        Whitelist(whitelist)  # refuses a bad regex before anything is connected
    output: Output
    if out is not None:
        output = FileSink(out, form, file_rows, file_seconds, max_messages)
    else:
        report = partial(click.echo, err=True) if skip else None
        output = Printer(sys.stdout.buffer, line, max_messages, report)
    try:
        with signals_raise() as check_signals:
            if partition is not None:
                if topic is None or isinstance(config, ConsumerConfig):
                    raise click.UsageError("--partition requires --topic and --bootstrap-server")
                start = "earliest" if from_beginning else _offset(offset)
                return _read_partition(
                    config, TopicPartition(topic, partition), start, output, check_signals
                )
            if isinstance(config, ConsumerConfig):
                _check_group(config, from_beginning)
            check_signals()
            return _consume(config, open_streams, output, check_signals, metrics_port)
    except SignalledError as signalled:
        for note in getattr(signalled, "__notes__", ()):
            click.echo(f"error: interrupted, {note}", err=True)
            return 1
        return EXIT_SIGNAL + signalled.number
    finally:
        click.echo(f"Processed a total of {output.count} messages", err=True)
        if generated and isinstance(config, ConsumerConfig):
            delete_generated(config)


def _offset(given: str | None) -> str:
    if given is None:
        return "latest"
    if given not in ("earliest", "latest") and not given.isdecimal():
        raise click.UsageError(f"--offset {given}: write earliest, latest or a number")
    return given


def _has_key(file: str | None, properties: Sequence[str], key: str) -> bool:
    in_file = () if file is None else read_properties(file)[0]
    return key in key_values(properties) or any(entry.key == key for entry in in_file)


def _names_zookeeper(file: str | None, properties: Sequence[str]) -> bool:
    return any(_has_key(file, properties, key) for key in ("zookeeper.connect", "zk.connect"))


def _read_partition(
    config: CoordinatorConfig,
    tp: TopicPartition,
    start: str,
    output: Output,
    check_signals: Callable[[], None],
) -> int:
    assert isinstance(output, Printer)
    limit = config.consumer_timeout_ms
    timeout = limit / 1000 if limit >= 0 else None
    try:
        for message in messages_of(config, tp, start, timeout, check_signals):
            if not output.write(None, message):
                break
    except ConsumerTimeoutError as error:
        click.echo(str(error), err=True)
        return 0 if output.count else error.exit_code
    return 0


def given_by(
    *,
    on_brokers: bool,
    zookeeper: str | None = None,
    bootstrap: str | None = None,
    group: str | None = None,
    file: str | None = None,
    properties: Sequence[str] = (),
    from_beginning: bool = False,
    timeout_ms: int | None = None,
    prefix: str = "console-consumer",
) -> tuple[Given, bool]:
    """Combine options, ``--consumer-property`` and file, which take precedence in this order.

    As in the JVM's tools: group ids that are given in several places must be equal,
    ``from_beginning`` must not contradict ``auto.offset.reset``, and in Kafka a group with a
    generated name commits nothing. Return the keys, and whether the group's name was generated from
    ``prefix`` and a number. Raises ConfigError.
    """
    given = key_values(properties)
    in_file = {} if file is None else {e.key: e.value for e in read_properties(file)[0]}
    groups = {
        "--group": group,
        "--consumer-property": given.get("group.id"),
        file or "": in_file.get("group.id"),
    }
    agreed = _agreed_group(groups)
    overrides: dict[str, object] = dict(given)
    if "group.id" not in in_file:  # else a fault in it is named with the file's line
        overrides["group.id"] = agreed or f"{prefix}-{_RANDOM.randrange(100_000):05d}"
    options = {
        "zookeeper.connect": zookeeper,
        "bootstrap.servers": bootstrap,
        "consumer.timeout.ms": timeout_ms,
    }
    overrides |= {name: value for name, value in options.items() if value is not None}
    if from_beginning:
        beginning = ("earliest", "smallest") if on_brokers else ("smallest",)
        reset = given.get("auto.offset.reset", in_file.get("auto.offset.reset"))
        if reset is not None and reset.strip() not in beginning:
            raise ConfigError(
                [
                    f"auto.offset.reset={reset} contradicts --from-beginning, which means "
                    f"{beginning[0]}: remove one of them"
                ]
            )
        overrides["auto.offset.reset"] = beginning[0]
    if on_brokers and agreed is None:
        overrides = {"enable.auto.commit": in_file.get("enable.auto.commit", "false"), **overrides}
    return given_in({} if file is None else file, overrides), agreed is None


def key_values(pairs: Sequence[str]) -> dict[str, str]:
    """Return the keys and values of ``--consumer-property KEY=VALUE``. Raises ConfigError."""
    given: dict[str, str] = {}
    faults = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            faults.append(f"--consumer-property {pair!r}: write KEY=VALUE")
        elif name.strip() in SECRETS:
            faults.append(
                f"--consumer-property {name.strip()}: every user of this machine can read a "
                "command line; write it into the file of --consumer-config or --command-config"
            )
        else:
            given[name.strip()] = value.strip()
    if faults:
        raise ConfigError(faults)
    return given


def _agreed_group(places: Mapping[str, str | None]) -> str | None:
    """Return the group id on which all sources agree; ``None`` if no source has one."""
    names = {place: name.strip() for place, name in places.items() if name is not None}
    if len(set(names.values())) > 1:
        sources = ", ".join(f"{place} says {name!r}" for place, name in names.items())
        raise ConfigError([f"group.id has more than one value: {sources}; use only one"])
    return next(iter(names.values()), None)


def _consume(
    config: ConsumerConfig | CoordinatorConfig,
    open_streams: Callable[[Connector], list[KafkaStream]],
    output: Output,
    check_signals: Callable[[], None],
    metrics_port: int | None,
) -> int:
    """Write until the end, and leave the group. Return the exit status. Raises the error that
    ended it early."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # printed already
        connector: Connector
        if isinstance(config, CoordinatorConfig):
            connector = CoordinatorConsumerConnector(config)
        else:
            connector = ZookeeperConsumerConnector(config)
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    try:
        if metrics_port is not None:
            server = start_http_server(connector, metrics_port)
            click.echo(f"metrics: {server.url}", err=True)
        streams = open_streams(connector)
        output.last = time.monotonic()
        for stream in streams:
            threading.Thread(
                target=_write_stream,
                args=(stream, output, config.consumer_timeout_ms / 1000, ends),
                name="printer",
                daemon=True,
            ).start()
        check_signals()
        end = ends.get()
    except BaseException as error:
        for end_it in (output.close, connector.shutdown):
            try:
                end_it()
            except (CommitFailedError, click.ClickException) as failed:
                error.add_note(f"and the last commit failed: {failed}")
        raise
    try:
        output.close()
    finally:
        connector.shutdown()
    if isinstance(end, ConsumerTimeoutError):
        click.echo(str(end), err=True)
        return 0 if output.count else end.exit_code
    if end is not None:
        raise end
    return 0


def _write_stream(
    stream: KafkaStream,
    output: Output,
    timeout: float,
    ends: queue.SimpleQueue[BaseException | None],
) -> None:
    """Write the messages of a stream. Runs on the stream's thread; when it ends, the
    command ends."""
    while True:
        try:
            if isinstance(output, FileSink):
                for batch in stream.arrow_batches(_LOOK_S):
                    if not output.add(batch):
                        break
                    if 0 <= timeout <= time.monotonic() - output.last:
                        raise ConsumerTimeoutError(
                            f"no message within consumer.timeout.ms = {round(timeout * 1000)}"
                        )
            else:
                for message in stream:
                    if not output.write(stream, message):
                        break
            ends.put(None)
        except ConsumerTimeoutError as error:
            if time.monotonic() - output.last < timeout:
                continue  # another stream has been busy
            ends.put(error)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            ends.put(error)
        return


def _zookeeper(config: ConsumerConfig) -> BlockingZk:
    timeout = config.zookeeper_connection_timeout_ms / 1000
    return BlockingZk(config.zookeeper_connect, timeout, config)


def _check_group(config: ConsumerConfig, from_beginning: bool) -> None:
    """Refuse groups that the JVM's tool refuses before it joins."""
    with _zookeeper(config) as zk:
        brokers = zk.run(children(BROKER_IDS))
        if config.brokers == "zookeeper" and brokers is None:
            raise BrokerUnavailableError(
                f"zookeeper.connect={config.zookeeper_connect}: /brokers/ids does not exist, so "
                f"no broker uses this address; check the chroot after the hosts. {_KRAFT}"
            )
        if config.brokers == "zookeeper" and not brokers and not config.bootstrap_servers:
            click.echo(f"warning: no broker is registered in ZooKeeper. {_KRAFT}", err=True)
        offsets = GroupPaths(config.group_id).offsets
        if from_beginning and zk.run(children(offsets)) is not None:
            raise ConfigError(
                [
                    f"group.id={config.group_id}: the group has committed offsets, so "
                    "--from-beginning has no effect: remove it, or use a new group"
                ]
            )


def delete_generated(config: ConsumerConfig) -> None:
    """Delete the znodes of a group whose name was generated for this run."""
    try:
        with _zookeeper(config) as zk:
            zk.run(delete(config.group_id, None, lambda _count: None))
    except UnknownGroupError:
        pass  # it did not get as far as joining
    except (GroupError, ZooKeeperError) as error:
        click.echo(f"warning: group {config.group_id} is not deleted: {error}", err=True)


def set_up_logging(verbose: int) -> None:
    """Log to stderr: warnings of this library; with -v its progress, with -vv other libraries
    too."""
    logging.basicConfig(
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        level=logging.DEBUG if verbose > 1 else logging.CRITICAL,
        force=True,
    )
    ours = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.getLogger("zkconsumer").setLevel(ours)
    logging.getLogger("zkconsumer.zk.kazoo").setLevel(
        logging.DEBUG if verbose > 1 else logging.CRITICAL
    )
