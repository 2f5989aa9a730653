"""zkconsumer: run, study, migrate and audit Kafka consumer groups that live in ZooKeeper.

Names are loaded when they are first used, so importing the package needs neither kazoo nor
kafka-python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zkconsumer.broker.fetching.records import MessageAndMetadata, TimestampType
    from zkconsumer.config import ConsumerConfig
    from zkconsumer.config.coordinator_keys import CoordinatorConfig
    from zkconsumer.config.migratable import MigratableConfig
    from zkconsumer.connector import ZookeeperConsumerConnector
    from zkconsumer.coordinator import CoordinatorConsumerConnector
    from zkconsumer.core.common.faults import Reason, Trouble
    from zkconsumer.core.common.topic_filter import Blacklist, TopicFilter, Whitelist
    from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
    from zkconsumer.core.migration.modes import Mode
    from zkconsumer.errors import (
        AuthenticationError,
        BrokerError,
        BrokerUnavailableError,
        ChrootMissingError,
        ClusterError,
        CodecUnavailableError,
        CommitFailedError,
        ConfigError,
        ConnectorClosedError,
        ConnectorFailedError,
        ConsumerTimeoutError,
        DuplicateConsumerIdError,
        ForeignMemberError,
        GroupActiveError,
        GroupChangedError,
        GroupError,
        InvalidMessageError,
        JournalFormatError,
        LeaderUnavailableError,
        MessageSizeTooLargeError,
        OffsetOutOfRangeError,
        OffsetsFileError,
        ProtectedGroupError,
        RebalanceFailedError,
        SessionExpiredError,
        StreamsAlreadyCreatedError,
        UnknownGroupError,
        UnsupportedBrokerError,
        UnsupportedLibraryError,
        UsageError,
        ZkConsumerError,
        ZkUnavailableError,
        ZnodeFormatError,
        ZooKeeperError,
    )
    from zkconsumer.migratable import MigratableConsumerConnector
    from zkconsumer.runtime.delivery.messages import (
        bytes_decoder,
        integer_decoder,
        long_decoder,
        string_decoder,
    )
    from zkconsumer.runtime.delivery.streams import KafkaStream
    from zkconsumer.runtime.membership.listener import ConsumerRebalanceListener
    from zkconsumer.runtime.observation.health import Health
    from zkconsumer.runtime.observation.metrics import Metrics

__all__ = [
    "AuthenticationError",
    "Blacklist",
    "BrokerError",
    "BrokerUnavailableError",
    "ChrootMissingError",
    "ClusterError",
    "CodecUnavailableError",
    "CommitFailedError",
    "ConfigError",
    "ConnectorClosedError",
    "ConnectorFailedError",
    "ConsumerConfig",
    "ConsumerRebalanceListener",
    "ConsumerThreadId",
    "ConsumerTimeoutError",
    "CoordinatorConfig",
    "CoordinatorConsumerConnector",
    "DuplicateConsumerIdError",
    "ForeignMemberError",
    "GroupActiveError",
    "GroupChangedError",
    "GroupError",
    "Health",
    "InvalidMessageError",
    "JournalFormatError",
    "KafkaStream",
    "LeaderUnavailableError",
    "MessageAndMetadata",
    "MessageSizeTooLargeError",
    "Metrics",
    "MigratableConfig",
    "MigratableConsumerConnector",
    "Mode",
    "OffsetOutOfRangeError",
    "OffsetsFileError",
    "ProtectedGroupError",
    "Reason",
    "RebalanceFailedError",
    "SessionExpiredError",
    "StreamsAlreadyCreatedError",
    "TimestampType",
    "TopicFilter",
    "TopicPartition",
    "Trouble",
    "UnknownGroupError",
    "UnsupportedBrokerError",
    "UnsupportedLibraryError",
    "UsageError",
    "Whitelist",
    "ZkConsumerError",
    "ZkUnavailableError",
    "ZnodeFormatError",
    "ZooKeeperError",
    "ZookeeperConsumerConnector",
    "bytes_decoder",
    "integer_decoder",
    "long_decoder",
    "string_decoder",
]

_HOMES = {
    "zkconsumer.broker.fetching.records": ("MessageAndMetadata", "TimestampType"),
    "zkconsumer.config": ("ConsumerConfig",),
    "zkconsumer.config.coordinator_keys": ("CoordinatorConfig",),
    "zkconsumer.config.migratable": ("MigratableConfig",),
    "zkconsumer.connector": ("ZookeeperConsumerConnector",),
    "zkconsumer.coordinator": ("CoordinatorConsumerConnector",),
    "zkconsumer.core.common.topic_filter": ("Blacklist", "TopicFilter", "Whitelist"),
    "zkconsumer.core.common.types": ("ConsumerThreadId", "TopicPartition"),
    "zkconsumer.migratable": ("MigratableConsumerConnector",),
    "zkconsumer.core.common.faults": ("Reason", "Trouble"),
    "zkconsumer.core.migration.modes": ("Mode",),
    "zkconsumer.runtime.observation.health": ("Health",),
    "zkconsumer.runtime.membership.listener": ("ConsumerRebalanceListener",),
    "zkconsumer.runtime.delivery.messages": (
        "bytes_decoder",
        "integer_decoder",
        "long_decoder",
        "string_decoder",
    ),
    "zkconsumer.runtime.observation.metrics": ("Metrics",),
    "zkconsumer.runtime.delivery.streams": ("KafkaStream",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF.get(name, "zkconsumer.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
