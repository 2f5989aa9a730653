"""Every error a user of zkconsumer can meet. One tree, one place.

Foreign errors are mapped to these in exactly two places: ``zkconsumer.zk.driver`` (kazoo) and
``zkconsumer.broker`` (kafka-python and sockets).

::

    ZkConsumerError
    +- ConfigError
    +- AuthenticationError
    +- UsageError
    |  +- StreamsAlreadyCreatedError
    |  +- ConnectorClosedError
    +- RebalanceFailedError
    +- ConnectorFailedError
    +- ConsumerTimeoutError
    +- ZooKeeperError
    |  +- ZkUnavailableError
    |  +- SessionExpiredError
    |  +- ChrootMissingError
    |  +- ZnodeFormatError
    |  +- DuplicateConsumerIdError
    |  +- ForeignMemberError
    +- BrokerError
    |  +- LeaderUnavailableError
    |  +- BrokerUnavailableError
    |  +- OffsetOutOfRangeError
    |  +- CommitFailedError
    |  +- UnsupportedBrokerError
    |  +- InvalidMessageError
    |  +- MessageSizeTooLargeError
    |  +- CodecUnavailableError
    +- GroupError
    |  +- UnknownGroupError
    |  +- GroupActiveError
    |  +- GroupChangedError
    +- OffsetsFileError
    +- JournalFormatError
    +- ClusterError
    +- UnsupportedLibraryError

Each class carries two traits: ``retriable`` (the same call may succeed later) and ``exit_code``
(what the command line exits with). A refused claim, a torn view or a stale answer is a fact of the
protocol, never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ZkConsumerError(Exception):
    """Base of all errors raised on purpose. Its text is one line that a user can act on."""

    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(ZkConsumerError):
    """The configuration has faults; ``faults`` lists all of them, each with its key and fix."""

    exit_code: ClassVar[int] = 2

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))


class AuthenticationError(ZkConsumerError):
    """A server and this client do not accept each other; the text names the key to correct.

    Never retried: attempts with a wrong password can lock an account. A connector that meets it
    ends its membership.
    """

    exit_code: ClassVar[int] = 2


class UsageError(ZkConsumerError):
    """A call that the object's state does not allow."""

    exit_code: ClassVar[int] = 2


class StreamsAlreadyCreatedError(UsageError):
    """Streams can be created once for each connector (Scala: MessageStreamsExistException)."""


class ConnectorClosedError(UsageError):
    """The connector was shut down."""


class RebalanceFailedError(ZkConsumerError):
    """The first rebalance did not succeed (Scala: ConsumerRebalanceFailedException)."""


class ConnectorFailedError(ZkConsumerError):
    """A fault inside the connector has ended its membership; the text names it. Make a new one.

    Raised within two seconds, also when a thread of the connector has ended; within a minute when
    the member's own thread hangs.
    """


class ConsumerTimeoutError(ZkConsumerError):
    """No message arrived within ``consumer.timeout.ms``; the iterator may be used again."""

    retriable: ClassVar[bool] = True


class ZooKeeperError(ZkConsumerError):
    """ZooKeeper refused or could not carry out an operation."""


class ZkUnavailableError(ZooKeeperError):
    """No connection to ZooKeeper could be made, or it was lost while an operation was under way."""

    retriable: ClassVar[bool] = True


class SessionExpiredError(ZooKeeperError):
    """The ZooKeeper session that the operation belonged to has ended."""

    retriable: ClassVar[bool] = True


class ChrootMissingError(ZooKeeperError):
    """The chroot named in ``zookeeper.connect`` does not exist."""

    exit_code: ClassVar[int] = 2


class ZnodeFormatError(ZooKeeperError):
    """A znode's content is not what its place requires. ``path`` names the znode."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class DuplicateConsumerIdError(ZooKeeperError):
    """Another live session has registered the same consumer id."""

    exit_code: ClassVar[int] = 2


class ForeignMemberError(ZooKeeperError):
    """A group with ``zkconsumer.brokers=bootstrap`` has a member of the JVM's consumer."""


class BrokerError(ZkConsumerError):
    """A Kafka broker refused or could not carry out a request."""


class LeaderUnavailableError(BrokerError):
    """A partition has no leader at the moment."""

    retriable: ClassVar[bool] = True


class BrokerUnavailableError(BrokerError):
    """No connection to a broker could be made, or it broke."""

    retriable: ClassVar[bool] = True


class OffsetOutOfRangeError(BrokerError):
    """The offset asked for is below the log start or above the log end."""


class CommitFailedError(BrokerError):
    """Offsets could not be committed; the text names the partitions and why."""

    retriable: ClassVar[bool] = True


class UnsupportedBrokerError(BrokerError):
    """The broker's generation lacks what is needed."""


class InvalidMessageError(BrokerError):
    """A message's checksum or structure is wrong (Scala: InvalidMessageException)."""


class MessageSizeTooLargeError(BrokerError):
    """A message is larger than ``fetch.message.max.bytes`` and the broker sent only its head."""


class CodecUnavailableError(BrokerError):
    """Messages are compressed with a codec whose library is not installed."""


class GroupError(ZkConsumerError):
    """A group tool cannot do what it was asked to."""


class UnknownGroupError(GroupError):
    """There is no group of that name below ``/consumers``."""


class GroupActiveError(GroupError):
    """Members are registered, so the group's znodes must not be changed; the text names them."""


class GroupChangedError(GroupError):
    """Somebody else changed the group meanwhile; the text says what was done and what was not."""


class OffsetsFileError(ZkConsumerError):
    """A file of offsets has faults; ``faults`` lists all of them, each with file and line."""

    exit_code: ClassVar[int] = 2

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))


class JournalFormatError(ZkConsumerError):
    """A line of a journal is not what the schema says; names file and line."""

    exit_code: ClassVar[int] = 2

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        super().__init__(f"{path}:{line}: {reason}")


class ClusterError(ZkConsumerError):
    """The embedded cluster could not be started, found or stopped."""


class UnsupportedLibraryError(ZkConsumerError):
    """kazoo or kafka-python is installed in a version whose internals differ from those used."""

    def __init__(self, library: str, version: str, supported: str, difference: str) -> None:
        super().__init__(
            f"{library} {version} cannot be used: {difference}; "
            f"run pip install '{library}{supported}'"
        )
