"""kazoo and kafka-python have no interface for what we use of them, so changes have to be
noticed."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections import deque
from pathlib import Path
from typing import Any

import kafka
import kazoo
import pytest
from kafka.protocol import consumer, metadata
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler

from zkconsumer.broker import messages
from zkconsumer.errors import UnsupportedLibraryError
from zkconsumer.zk import connection
from zkconsumer.zk.driver import ZkDriver


def driver() -> ZkDriver:
    """A driver that has no connection yet."""
    return ZkDriver("127.0.0.1:1", "", 4.0, lambda _event, _session: None, lambda _path: None)


def test_the_installed_versions_fit() -> None:
    """Both libraries are as expected. The version ranges in the errors are those of the package."""
    driver().close(0.0)
    importlib.reload(messages)
    project = Path(__file__).parents[2] / "pyproject.toml"
    wanted = tomllib.loads(project.read_text())["project"]["dependencies"]
    assert f"kazoo{connection.SUPPORTED}" in wanted
    assert f"kafka-python{messages.SUPPORTED}" in wanted


def other(*_changed: object) -> None:
    """Takes other arguments than the method that it replaces."""


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (KazooClient, "_call", r"KazooClient._call does not take (request async_object)"),
        (ConnectionHandler, "_invoke", "ConnectionHandler._invoke does not take (timeout request"),
        (ConnectionHandler, "_connect_attempt", "does not take (host hostip port retry)"),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_a_changed_method_of_kazoo_is_named(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: str, gone: bool
) -> None:
    """A driver is refused at its start, and does not fail later. The error names the right
    versions."""
    if gone:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, other)
    expected = rf"kazoo {kazoo.__version__} cannot be used: .*{re.escape(fault)}.*kazoo>=.*,<"
    with pytest.raises(UnsupportedLibraryError, match=expected):
        driver()


@pytest.mark.parametrize("name", ["_pending", "_queue", "_stopped"])
def test_a_missing_attribute_of_kazoo_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same holds for a renamed queue of requests."""
    made = KazooClient.__init__

    def renamed(client: Any, *args: Any, **options: Any) -> None:
        made(client, *args, **options)
        client.renamed = client.__dict__.pop(name, deque())

    monkeypatch.setattr(KazooClient, "__init__", renamed)
    with pytest.raises(UnsupportedLibraryError, match=f"KazooClient has no attribute {name};"):
        driver()


def test_a_missing_message_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If kafka-python no longer has a message, we raise our own error."""
    monkeypatch.delattr(consumer, "OffsetFetchRequest")
    expected = rf"kafka-python {kafka.__version__} cannot be used: .*OffsetFetchRequest.*>=.*,<"
    with pytest.raises(UnsupportedLibraryError, match=expected):
        importlib.reload(messages)


def test_messages_that_are_encoded_in_another_way_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the names are the same."""
    monkeypatch.setattr(metadata.MetadataRequest, "encode", lambda self, **_: b"")
    with pytest.raises(UnsupportedLibraryError, match="not encoded as expected"):
        importlib.reload(messages)
