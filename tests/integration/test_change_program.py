"""The program in docs/how-to/change-a-program.md, before and after its group is moved to Kafka."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.groups import Producer
from zkconsumer.servers import LocalCluster

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "change-a-program.md"
ZKMIGRATE = Path(sys.executable).with_name("zkmigrate")


def _program(side: str, cluster: LocalCluster, topic: str, group: str) -> str:
    """The page's program for these servers: with ``-`` lines (before) or ``+`` lines (after)."""
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line[1:] for line in diff.splitlines() if line[:1] in ("", " ", side)]
    text = "\n".join(lines)
    for written, real in (
        ("zk1:2181", cluster.zookeeper),
        ("kafka1:9092,kafka2:9092", cluster.bootstrap),
        ("orders", topic),
        ("shop", group),
    ):
        text = text.replace(f'"{written}"', f'"{real}"')
    return text


def _run(program: str, path: Path, wanted: set[str]) -> list[str]:
    """Run it until it has printed these lines, then press Ctrl-C. Return its whole output."""
    path.write_text(program)
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found: list[str] = []
            while not wanted <= set(found) and (line := process.stdout.readline()):
                found.append(line.strip())
            process.send_signal(signal.SIGINT)
            rest, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert wanted <= set(found), said
    assert "KeyboardInterrupt" in said
    assert "last commit failed" not in said, said
    return found + rest.splitlines()


def test_a_program_goes_on_after_its_group_was_moved(
    cluster: LocalCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """With the changes of the page the program continues where it stopped. Nothing is lost, and
    only the unacknowledged message is repeated."""
    cluster.create_topic(topic, 4)
    with Producer(cluster.bootstrap, topic, range(4)) as producer:
        producer.send(40)
        first = {f"{topic} {p} {n}" for p in range(4) for n in range(10)}
        before = _run(_program("-", cluster, topic, group), tmp_path / "before.py", first)
        assert sorted(before) == sorted(first)
        for arguments in (
            ["plan", "--group", group, "--out", "shop.plan"],
            ["apply", "shop.plan", "--execute"],
            ["status", "shop.plan"],
        ):
            subprocess.run(
                [ZKMIGRATE, *arguments, "--zookeeper", cluster.zookeeper],
                cwd=tmp_path,
                check=True,
                timeout=60,
            )
        producer.send(8)
    rest = {f"{topic} {p} {n}" for p in range(4) for n in (10, 11)}
    after = _run(_program("+", cluster, topic, group), tmp_path / "after.py", rest)
    in_hand = before[-1]  # Ctrl-C may arrive before the program asks for the next message
    assert sorted(line for line in after if line != in_hand) == sorted(rest)
    assert after.count(in_hand) <= 1
