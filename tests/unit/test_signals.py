"""Signals that end a command: it finishes what it promises, whatever is sent soon after."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import zkaudit.cli
from click.testing import CliRunner

from zkconsumer.broker.messages import FindCoordinatorRequest, FindCoordinatorResponse
from zkconsumer.cli.main import cli
from zkconsumer.cli.member.trace import trace
from zkconsumer.core.common.types import BrokerEndpoint

COMMAND = """
import os, signal, sys, time
from zkconsumer.cli.consume import command as consume
from zkconsumer.cli.laboratory import perf
from zkconsumer.cli.main import run

gap, arguments = float(sys.argv[1]), sys.argv[2:]

def send():
    os.kill(os.getpid(), signal.SIGTERM)

class Connector:
    def __init__(self, config):
        begin, self._go = os.pipe()
        if os.fork() == 0:  # not later: what a signal raises in hooks of a fork is lost
            os.close(self._go)
            os.read(begin, 1)
            time.sleep(gap)
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(0)
    def create_message_streams(self, topics):
        os.write(self._go, b"x")
        send()
        time.sleep(60)
    def shutdown(self):
        send()
        begun = time.monotonic()
        while time.monotonic() < begun + 0.3:
            time.sleep(0.01)
        print("has left", flush=True)

for module in (consume, perf):
    module.CoordinatorConsumerConnector = Connector
sys.exit(run(arguments))
"""
CONSUME = ["consume", "--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--group", "g"]
PERF = ["perf", "--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--messages", "1"]


@pytest.mark.parametrize("gap", [0.0, 0.003])
@pytest.mark.parametrize("command", [CONSUME, PERF], ids=["consume", "perf"])
def test_a_second_signal_soon_after_does_not_end_the_leave(command: list[str], gap: float) -> None:
    """GNU ``timeout`` sends two, and so do wrappers. The group is left, and the status is that of
    the first signal."""
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, str(gap), *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (143, "has left\n"), ended.stderr


LATER = """
import time
from zkconsumer.console.signals import GRACE, SignalledError, signals_raise

with signals_raise():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except SignalledError:
        time.sleep(GRACE)
        print("leaves", flush=True)
        time.sleep(60)
"""


def test_a_signal_after_the_grace_ends_the_process() -> None:
    """Somebody does not want to wait for the leave any longer."""
    with subprocess.Popen([sys.executable, "-c", LATER], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        one.send_signal(signal.SIGTERM)
        assert one.stdout.readline() == "leaves\n"
        begun = time.monotonic()
        one.send_signal(signal.SIGTERM)
        assert one.wait(30) == -signal.SIGTERM
        assert time.monotonic() - begun < 30


WAITING = ("threading.py", "undisturbed.py")
"""Files with the functions that a command waits in."""


class Signals:
    """Calls the handler of SIGINT at one point of a wait, as the interpreter does."""

    def __init__(self, at: int) -> None:
        self.points = 0
        self._at = at

    @contextmanager
    def sent(self) -> Iterator[None]:
        """During what runs inside."""
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        frame.f_trace_opcodes = True
        return self._point if Path(frame.f_code.co_filename).name in WAITING else None

    def _point(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event in ("line", "opcode"):
            self.points += 1
            if self.points == self._at:
                handler = signal.getsignal(signal.SIGINT)
                assert callable(handler)
                handler(signal.SIGINT, None)
        return self._point


def trace_once(monkeypatch: pytest.MonkeyPatch, _out: Path, signals: Signals) -> None:
    """Run ``zkconsumer trace``, with signals once its member has joined."""

    class Connector:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Connector:
            return self

        def __exit__(self, *_: object) -> None:
            sys.settrace(None)

        def create_message_streams(self, _topics: object) -> dict[str, list[object]]:
            return {}

    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "join":
            thread.join()
            sys.settrace(signals._called)

    monkeypatch.setattr("zkconsumer.cli.member.trace.CoordinatorConsumerConnector", Connector)
    monkeypatch.setattr(threading.Thread, "start", start)
    given = ["--bootstrap-server", "127.0.0.1:1", "--group", "g", "--topic", "t"]
    ended = CliRunner().invoke(cli, ["trace", *given, "--seconds", "0.01"])
    assert (ended.exit_code, ended.output) == (0, "")


@pytest.mark.timeout(60)
def test_a_trace_whose_reader_has_exited_leaves_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are printed by the member's own threads, which must not fail."""
    left: list[BaseException | None] = []

    class Connector:
        def __init__(self, _config: object, on_exchange: Callable[..., None]) -> None:
            self.show = on_exchange

        def __enter__(self) -> Connector:
            return self

        def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
            self.show(BrokerEndpoint(0, "b", 1), FindCoordinatorRequest(), exchanged)
            left.append(error)

        def create_message_streams(self, _topics: object) -> dict[str, list[object]]:
            self.show(BrokerEndpoint(0, "b", 1), FindCoordinatorRequest(), exchanged)
            return {}

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    exchanged = FindCoordinatorResponse()
    monkeypatch.setattr("zkconsumer.cli.member.trace.CoordinatorConsumerConnector", Connector)
    monkeypatch.setattr("click.echo", closed)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        given = ["--bootstrap-server", "127.0.0.1:1", "--group", "g", "--topic", "t"]
        ended = CliRunner().invoke(trace, given, standalone_mode=False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert isinstance(ended.exception, BrokenPipeError)
    assert left == [ended.exception]


def stream_once(monkeypatch: pytest.MonkeyPatch, out: Path, signals: Signals) -> None:
    """Run ``zkaudit stream``, with signals while it waits for the next round."""

    def stream(_spark: object, _options: object, _every: float, stop: Any, *_: object) -> None:
        with signals.sent():
            stop.wait(0.01)

    monkeypatch.setattr("zkaudit.commands.stream.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("zkaudit.job.stream.stream", stream)
    status = zkaudit.cli.run(["stream", "--zookeeper-logs", "zk1", "--out", str(out)])
    assert status in (0, 130)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", [trace_once, stream_once])
def test_a_signal_during_a_wait_does_not_block_the_command(
    command: Callable[[pytest.MonkeyPatch, Path, Signals], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A handler interrupts the main thread at any point, also where the thread has a lock."""
    assert threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with monkeypatch.context() as patched:
            counting = Signals(0)
            command(patched, tmp_path, counting)
        assert counting.points > 5
        for at in range(1, counting.points + 1):
            with monkeypatch.context() as patched:
                command(patched, tmp_path, Signals(at))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
