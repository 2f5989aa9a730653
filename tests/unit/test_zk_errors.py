"""Every error of kazoo has a code that the scripts can handle."""

from __future__ import annotations

import inspect

import pytest
from kazoo import exceptions as kz

from zkconsumer.core.zookeeper.ops import Code
from zkconsumer.errors import ClusterError, ZnodeFormatError
from zkconsumer.servers.topics import in_zookeeper
from zkconsumer.zk.driver import code_of

KINDS = sorted(
    {
        kind
        for _, kind in inspect.getmembers(kz, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == kz.__name__
    },
    key=lambda kind: kind.__name__,
)

#: Errors that no script can handle: the command fails, and the error is reported.
OTHER = {
    "APIError",
    "BadArgumentsError",
    "CancelledError",
    "ConfigurationError",
    "ConnectionDropped",
    "DataInconsistency",
    "EphemeralOnLocalSessionError",
    "InvalidCallbackError",
    "KazooException",
    "LockTimeout",
    "MarshallingError",
    "NewConfigNoQuorumError",
    "NoWatcherError",
    "NotReadOnlyCallError",
    "QuotaExceededError",
    "ReconfigDisabledError",
    "ReconfigInProcessError",
    "RequestTimeoutError",
    "RolledBackError",
    "RuntimeInconsistency",
    "SASLException",
    "SystemZookeeperError",
    "ThrottledOpError",
    "UnimplementedError",
    "UnknownSessionError",
    "WriterNotClosedException",
    "ZookeeperError",
    "ZookeeperStoppedError",
}


def test_all_kinds_are_found() -> None:
    """The walk over kazoo's errors finds them, so the tests below are not empty."""
    assert len(KINDS) > 20
    assert set(kz.EXCEPTIONS.values()) <= set(KINDS)
    assert {kind.__name__ for kind in KINDS} >= OTHER


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_code(kind: type[Exception]) -> None:
    """Each error is mapped to a code that a script handles, or is in the list above of those that
    no script handles. A new kazoo version with another error fails here."""
    code = code_of(kind())
    assert isinstance(code, Code)
    assert (code is Code.OTHER) == (kind.__name__ in OTHER), (kind, code)


def test_subclasses_take_their_parents_code() -> None:
    """An error that a later kazoo derives from a known one is treated like that one."""

    class Later(kz.NoNodeError):
        pass

    assert code_of(Later()) is Code.NO_NODE


def test_an_answer_that_kazoo_cannot_read_leaves_the_outcome_open() -> None:
    """kazoo returns the decoding error itself. The operation may have been carried out."""
    assert code_of(UnicodeDecodeError("utf-8", b"", 0, 1, "")) is Code.CONNECTION_LOSS


@pytest.mark.parametrize(
    ("reason", "text"),
    [("is not JSON", "/a is not JSON"), ("'x' is not an offset", "/a: 'x' is not an offset")],
)
def test_the_text_about_a_znode_is_a_sentence(reason: str, text: str) -> None:
    """The znode is its subject, unless the reason has one of its own."""
    assert str(ZnodeFormatError("/a", reason)) == text


def test_an_error_of_kazoo_without_a_text_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of its errors have no text: the kind is named then."""

    class Client:
        """One that loses its connection."""

        def __init__(self, *_: object, **__: object) -> None:
            self.stop = self.close = lambda: None

        def start(self, timeout: float) -> None:
            raise kz.ConnectionLoss

    monkeypatch.setattr(in_zookeeper, "KazooClient", Client)
    with pytest.raises(ClusterError, match="ZooKeeper at h:1: ConnectionLoss"):
        in_zookeeper.zookeeper_session("h:1").__enter__()
