"""All errors of zkconsumer, in one tree.

Foreign errors are mapped to these in two places: ``zkconsumer.zk.driver`` (kazoo) and
``zkconsumer.broker`` (kafka-python and sockets).

Each class has two attributes: ``retriable`` (the same call may succeed later) and ``exit_code``
(what the command line exits with). Refused claims, inconsistent views and late answers are events
of the protocol, not exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ZkConsumerError(Exception):
    """Base of all errors of this library. The text is one line that names the fix."""

    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(ZkConsumerError):
    """The configuration has faults. ``faults`` lists all of them, each with its key and fix."""

    exit_code: ClassVar[int] = 2

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))


class AuthenticationError(ZkConsumerError):
    """A server refused the first login, or its certificate is not accepted. Correct the key that
    the text names. The login is not tried again, because attempts with a wrong password can lock an
    account. If a connector has already joined its group, it leaves it. After a successful login, a
    connector retries a server that refuses it."""

    exit_code: ClassVar[int] = 2


class UsageError(ZkConsumerError):
    """The call is not allowed in the object's current state. Correct the program."""

    exit_code: ClassVar[int] = 2


class StreamsAlreadyCreatedError(UsageError):
    """The connector has streams already (Scala: MessageStreamsExistException). They can be created
    only once: use another connector."""


class ConnectorClosedError(UsageError):
    """The connector was shut down. Create a new one."""


class RebalanceFailedError(ZkConsumerError):
    """The first rebalance failed or took too long (Scala: ConsumerRebalanceFailedException). Remove
    the cause that the text names, and create a new connector."""


class ConnectorFailedError(ZkConsumerError):
    """A fault inside the connector has ended its membership. Correct the fault that the text
    describes, and create a new connector. Raised within two seconds, or within a minute if the
    member's own thread hangs."""


class ConsumerTimeoutError(ZkConsumerError):
    """No message arrived within ``consumer.timeout.ms``. The iterator may be used again."""

    retriable: ClassVar[bool] = True


class ZooKeeperError(ZkConsumerError):
    """ZooKeeper refused an operation, or could not carry it out."""


class ZkUnavailableError(ZooKeeperError):
    """There is no connection to ZooKeeper, or it was lost during an operation. Check the servers
    and ``zookeeper.connect``, then repeat the call."""

    retriable: ClassVar[bool] = True


class SessionExpiredError(ZooKeeperError):
    """The ZooKeeper session that the operation belonged to has ended. Repeat the call."""

    retriable: ClassVar[bool] = True


class ChrootMissingError(ZooKeeperError):
    """The chroot in ``zookeeper.connect`` does not exist. Use the chroot of Kafka's brokers."""

    exit_code: ClassVar[int] = 2


_VERBS = ("is", "has", "was", "holds", "names", "subscribes", "does", "looks")
"""Reasons that begin with one of these are about the znode itself."""


class ZnodeFormatError(ZooKeeperError):
    """A znode's data does not have the required format. ``path`` names the znode: find out which
    client wrote it. ``too_large``: the data exceeds a limit of this library; other clients may be
    able to read it."""

    def __init__(self, path: str, reason: str, too_large: bool = False) -> None:
        self.path = path
        self.reason = reason
        self.too_large = too_large
        about_it = reason.partition(" ")[0] in _VERBS
        super().__init__(f"{path} {reason}" if about_it else f"{path}: {reason}")


class DuplicateConsumerIdError(ZooKeeperError):
    """Another live session has registered the same consumer id. Give each process its own id. After
    a kill, wait for the session timeout."""

    exit_code: ClassVar[int] = 2


class ForeignMemberError(ZooKeeperError):
    """A group with ``zkconsumer.brokers=bootstrap`` has a JVM member. Stop that member."""


class BrokerError(ZkConsumerError):
    """A Kafka broker refused a request, or could not carry it out."""


class LeaderUnavailableError(BrokerError):
    """A partition has no leader at the moment. Repeat the call."""

    retriable: ClassVar[bool] = True


class BrokerUnavailableError(BrokerError):
    """There is no connection to a broker, or it was lost. Check the brokers, then repeat
    the call."""

    retriable: ClassVar[bool] = True


class OffsetOutOfRangeError(BrokerError):
    """The requested offset is below the log start or above the log end. Choose a valid one."""


class CommitFailedError(BrokerError):
    """Offsets could not be committed. The text names each partition and the reason. Do not repeat
    the commit for partitions that another member owns now."""

    retriable: ClassVar[bool] = True


class UnsupportedBrokerError(BrokerError):
    """The broker's release does not support a required feature. Use another broker, or change the
    key that the text names."""


class InvalidMessageError(BrokerError):
    """A message's checksum or structure is wrong (Scala: InvalidMessageException). To skip it, stop
    the group and use ``zkmigrate reset``."""


class MessageSizeTooLargeError(BrokerError):
    """A message exceeds ``fetch.message.max.bytes``, so the broker sent only a part of it. Increase
    that value."""


class CodecUnavailableError(BrokerError):
    """Messages are compressed with a codec whose library is not installed. Install the library that
    the text names."""


class GroupError(ZkConsumerError):
    """A group tool cannot carry out the command."""


class UnknownGroupError(GroupError):
    """There is no group of that name below ``/consumers``. Check the name and the chroot."""


class GroupActiveError(GroupError):
    """Members are registered, so the group's znodes must not be changed. Stop the members that the
    text names."""


class ProtectedGroupError(GroupError):
    """The group was moved to Kafka, is in a live move, or is locked. The text says which. Use
    ``zkmigrate``."""


class GroupChangedError(GroupError):
    """Another client changed the group in the meantime. The text lists which changes were made and
    which were not. Stop that client, then repeat the command."""


class OffsetsFileError(ZkConsumerError):
    """A file of offsets has faults. ``faults`` lists all of them, each with file and line."""

    exit_code: ClassVar[int] = 2

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(faults)
        super().__init__("; ".join(self.faults))


class JournalFormatError(ZkConsumerError):
    """A line of a journal does not follow the schema. The text names file and line. Use the release
    that wrote the journal."""

    exit_code: ClassVar[int] = 2

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        self.reason = reason
        super().__init__(f"{path}:{line}: {reason}")


class ClusterError(ZkConsumerError):
    """The embedded cluster could not be started, found or stopped. The text names the cause."""


class UnsupportedLibraryError(ZkConsumerError):
    """The installed version of kazoo or kafka-python has different internals than expected. Install
    the version that the text names."""

    def __init__(self, library: str, version: str, supported: str, difference: str) -> None:
        super().__init__(
            f"{library} {version} cannot be used: {difference}; "
            f"run pip install '{library}{supported}'"
        )
