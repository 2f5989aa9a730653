"""Metrics for Prometheus, through prometheus_client (``pip install '.[prometheus]'`` in a clone).

``start_http_server`` answers scrapes on a port. ``ConnectorCollector`` can be added to the
application's own registry. Values are read during a scrape, on the server's thread. Nothing runs
between scrapes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from zkconsumer.core.common.faults import Trouble
from zkconsumer.core.migration.modes import Mode
from zkconsumer.errors import ConnectorClosedError, UsageError
from zkconsumer.runtime.connector import StreamConnector
from zkconsumer.runtime.counters import HistogramValue
from zkconsumer.runtime.observation.health import MIN_SECONDS, Health
from zkconsumer.runtime.observation.metrics import Declared, Kind, declared

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

PREFIX = "zkconsumer_"
LABELS = ("client_id", "group", "member")

AnyConnector = StreamConnector[Any]
"""``ZookeeperConsumerConnector`` or ``CoordinatorConsumerConnector``."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number in ``Health`` as a Prometheus gauge."""

    name: str
    help: str
    value: Callable[[Health], float]


GAUGES: Final = (
    Gauge("healthy", "1 if the member has no problem, otherwise 0.", lambda health: health.ok),
    Gauge(
        "alive",
        "1 if the member works or can recover by itself. 0 if only a new connector helps.",
        lambda health: health.alive,
    ),
    Gauge("registered", "1 if the member is in its group, otherwise 0.", lambda f: f.registered),
    Gauge(
        "entitled", "1 if partitions are assigned to the member, otherwise 0.", lambda f: f.entitled
    ),
    Gauge(
        "delivering",
        "1 if the member owns partitions and delivery is not paused, otherwise 0.",
        lambda health: health.delivering,
    ),
    Gauge(
        "seconds_since_progress",
        "Longest time in seconds since an owned partition made progress: a message was consumed, "
        "or a broker had no new one.",
        lambda health: health.seconds_since_progress or 0.0,
    ),
)
UNHEALTHY: Final = (
    "unhealthy",
    "1 if the member has a problem of this kind, otherwise 0. The label reason names the kind.",
)


class ConnectorCollector:
    """Exports metrics of connectors, labelled with client id, group and member.

    Connectors of both kinds may be mixed; each kind has its own states. Members of groups in Kafka
    have no ZooKeeper metrics.

    Register one collector in each registry:
    ``REGISTRY.register(ConnectorCollector([connector]))``. A connector that was shut down is left
    out and forgotten. Any thread may call it.

    Args:
        connectors: more may be added later.
        min_seconds: as for ``health`` of a connector.

    Raises UsageError when prometheus_client is not installed.
    """

    def __init__(
        self, connectors: Iterable[AnyConnector] = (), min_seconds: float = MIN_SECONDS
    ) -> None:
        _require()
        self._min_seconds = min_seconds
        self._lock = threading.Lock()
        self._connectors = list(connectors)

    def add(self, connector: AnyConnector) -> None:
        """Export this connector as well. Adding it again has no effect."""
        with self._lock:
            if connector not in self._connectors:
                self._connectors.append(connector)

    def describe(self) -> Sequence[Metric]:
        """Return the metric families without samples. prometheus_client calls this when the
        collector is registered."""
        return [*(_family(metric) for metric in declared()), *_health_families()]

    def collect(self) -> Iterator[Metric]:
        """Return all metric families with the current values."""
        with self._lock:
            self._connectors = [connector for connector in self._connectors if not connector.closed]
            connectors = list(self._connectors)
        read = []
        for connector in connectors:
            with suppress(ConnectorClosedError):  # in a forked process: its health says so
                read.append((connector, connector.metrics()))
        for metric in declared():
            family = _family(metric)
            for connector, values in read:
                if metric.in_zookeeper and not connector.in_zookeeper:
                    continue
                _add(family, metric, connector, getattr(values, metric.name))
            yield family
        yield from _health_of(connectors, self._min_seconds)


class MetricsServer:
    """A running endpoint for Prometheus. ``close`` it, or use it in a ``with`` statement."""

    def __init__(self, collector: ConnectorCollector, server: Any, thread: Any) -> None:
        self.collector = collector
        """Collector of this endpoint. More connectors can be added to it."""
        self.port: int = server.server_port
        address = server.server_address[0]
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.port}/metrics"
        self._server = server
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and its thread. May be repeated."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start_http_server(
    connectors: AnyConnector | Iterable[AnyConnector],
    port: int,
    addr: str = "127.0.0.1",
) -> MetricsServer:
    """Answer scrapes of ``http://addr:port/metrics`` on a separate thread.

    Args:
        connectors: one, or several of this process; more may be added to the result's
            ``collector``.
        port: 0 uses a free port; the result's ``port`` is its number.
        addr: where to listen. The default is 127.0.0.1.

    The server continues after the connectors' shutdown; ``close`` ends it.

    Raises UsageError when prometheus_client is not installed, or the address cannot be used.
    """
    _require()
    from prometheus_client import start_http_server as serve
    from prometheus_client.registry import CollectorRegistry

    if isinstance(connectors, StreamConnector):
        connectors = (connectors,)
    collector = ConnectorCollector(connectors)
    registry: CollectorRegistry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = serve(port, addr, registry)
    except OSError as error:
        raise UsageError(
            f"metrics cannot be served on {addr}, port {port}: {error.strerror or error}; "
            "choose another port"
        ) from error
    return MetricsServer(collector, server, thread)


def _require() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "Prometheus metrics need prometheus_client: in a clone run pip install '.[prometheus]'"
        ) from error


def _family(metric: Declared) -> Any:
    from prometheus_client import core

    kinds = {Kind.COUNTER: core.CounterMetricFamily, Kind.HISTOGRAM: core.HistogramMetricFamily}
    labels: tuple[str, ...] = LABELS
    if metric.name in ("lag", "pause_seconds"):
        labels = (*LABELS, "topic", "partition")
    elif metric.kind is Kind.STATE:
        labels = (*LABELS, metric.name)
    kind = kinds.get(metric.kind, core.GaugeMetricFamily)
    return kind(PREFIX + metric.name, metric.help, labels=labels)


def _health_families() -> list[Any]:
    from prometheus_client.core import GaugeMetricFamily

    families = [
        GaugeMetricFamily(PREFIX + gauge.name, gauge.help, labels=LABELS) for gauge in GAUGES
    ]
    name, text = UNHEALTHY
    return [*families, GaugeMetricFamily(PREFIX + name, text, labels=(*LABELS, "reason"))]


def _health_of(connectors: Iterable[AnyConnector], min_seconds: float) -> list[Any]:
    families = _health_families()
    *gauges, unhealthy = families
    for connector in connectors:
        health, labels = connector.health(min_seconds), _labels(connector)
        for gauge, family in zip(GAUGES, gauges, strict=True):
            family.add_metric(labels, float(gauge.value(health)))
        troubles = {reason.trouble for reason in health.reasons}
        for trouble in Trouble:
            unhealthy.add_metric((*labels, trouble.label), float(trouble in troubles))
    return families


def _labels(connector: AnyConnector) -> tuple[str, str, str]:
    return connector.config.client_id, connector.config.group_id, connector.consumer_id


def _add(family: Any, metric: Declared, connector: AnyConnector, value: Any) -> None:
    labels = _labels(connector)
    if isinstance(value, HistogramValue):
        buckets = [(str(bound), count) for bound, count in value.buckets.items()]
        family.add_metric(labels, [*buckets, ("+Inf", value.count)], value.sum)
    elif isinstance(value, Mapping):
        for tp, number in value.items():
            family.add_metric((*labels, tp.topic, str(tp.partition)), number)
    elif metric.kind is Kind.STATE:
        modes = [mode.value for mode in Mode] if value else []
        names = modes if metric.name == "mode" else [state.name for state in connector.states]
        for name in names:
            family.add_metric((*labels, name), int(name == value))
    else:
        family.add_metric(labels, value)
