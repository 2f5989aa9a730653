"""Signals that end a command: it finishes what it promises, whatever is sent soon after."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

COMMAND = """
import os, signal, sys, time
from zkconsumer.cli import consume, perf
from zkconsumer.cli.main import run

gap, arguments = float(sys.argv[1]), sys.argv[2:]

def send():
    os.kill(os.getpid(), signal.SIGTERM)

class Connector:
    def __init__(self, config):
        pass
    def create_message_streams(self, topics):
        if os.fork() == 0:
            parent = os.getppid()
            time.sleep(gap)
            os.kill(parent, signal.SIGTERM)
            os._exit(0)
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
from zkconsumer.cli.signals import GRACE, SignalledError, signals_raise

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
