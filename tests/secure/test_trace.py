"""If ``zkconsumer trace`` cannot connect, it says why, and ends in time or at a signal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.secure.stage import TOPIC, WAYS, Stage, write_properties
from zkconsumer.servers.servers import free_port

END_SECONDS = 20.0
"""Limit for a command that cannot succeed, including its start."""


def trace(server: str, folder: Path, properties: dict[str, str], *more: str) -> subprocess.Popen:
    """Start a trace."""
    file = write_properties(folder / "trace.properties", properties)
    command = [
        str(Path(sys.executable).with_name("zkconsumer")),
        *("trace", "--bootstrap-server", server, "--group", "traced", "--topic", TOPIC),
        *("--command-config", str(file), *more),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def silent() -> Iterator[str]:
    """A port that accepts connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("protocol", "listener"),
    [
        ("PLAINTEXT", "SSL"),
        ("PLAINTEXT", "SASL_SSL"),
        ("PLAINTEXT", "SASL_PLAINTEXT"),
        ("SSL", "PLAINTEXT"),
        ("SSL", "SASL_SSL"),
        ("SASL_SSL", "PLAINTEXT"),
        ("SASL_SSL", "SSL"),
        ("SASL_PLAINTEXT", "PLAINTEXT"),
        ("SASL_PLAINTEXT", "SASL_SSL"),
    ],
)
def test_another_protocol_is_named(
    stage: Stage, tmp_path: Path, protocol: str, listener: str
) -> None:
    """If a listener uses another protocol than ``security.protocol``, the error names the key at
    once."""
    way = next(way for way, (of, *_) in WAYS.items() if of == protocol)
    process = trace(stage.cluster.at(listener), tmp_path, stage.properties(way))
    _, error = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 1, error
    assert "security.protocol" in error
    assert "Traceback" not in error


def test_a_dead_port(stage: Stage, tmp_path: Path) -> None:
    """If nothing listens on the port, the error names the address."""
    server = f"127.0.0.1:{free_port()}"
    process = trace(server, tmp_path, {}, "--seconds", "2")
    _, error = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 1
    assert server in error
    assert "Traceback" not in error


def test_a_silent_port_ends_after_its_seconds(tmp_path: Path) -> None:
    """``--seconds`` also ends a trace while the broker does not answer."""
    with silent() as server:
        process = trace(server, tmp_path, {}, "--seconds", "2")
        _, error = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 1
    assert server in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_silent_port_and_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end a trace while the broker does not answer."""
    with silent() as server:
        process = trace(server, tmp_path, {})
        with pytest.raises(subprocess.TimeoutExpired):  # the trace has started, and waits
            process.wait(3.0)
        process.send_signal(number)
        began = time.monotonic()
        process.communicate(timeout=END_SECONDS)
    assert time.monotonic() - began < END_SECONDS / 2
    assert process.returncode != 0
