"""``zkconsumer consume`` as a user runs it: real processes, real servers."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.integration.conftest import CONSUME
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.cli.consume.command import delete_generated, given_by
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.zookeeper.ops import Delete, Multi
from zkconsumer.errors import ConfigError
from zkconsumer.servers import LocalCluster, free_port
from zkconsumer.servers.produce import send
from zkconsumer.zk.driver import ZkDriver


def consume(*arguments: str, timeout: float = 60) -> Any:
    """Run the command to its end."""
    return subprocess.run(
        [*CONSUME, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture
def filled(cluster: LocalCluster, topic: str) -> str:
    """A topic with 3 partitions and the messages ``m0`` .. ``m29``, keys ``k0`` .. ``k29``."""
    cluster.create_topic(topic, partitions=3)
    send(cluster.bootstrap, topic, [(b"k%d" % i, b"m%d" % i) for i in range(30)])
    return topic


def committed(zk: KazooClient, group: str, topic: str) -> int:
    """The sum of the group's committed offsets."""
    path = f"/consumers/{group}/offsets/{topic}"
    if zk.exists(path) is None:
        return 0
    return sum(int(zk.get(f"{path}/{p}")[0]) for p in zk.get_children(path))


def members(zk: KazooClient, group: str) -> list[str]:
    """The registered members."""
    path = f"/consumers/{group}/ids"
    return [] if zk.exists(path) is None else zk.get_children(path)


def assert_clean_error(done: Any, status: int, *words: str) -> None:
    """Check for one clear line, the exit status, and no traceback."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error: ")]
    assert len(errors) == 1, done.stderr
    for word in words:
        assert word in errors[0]


def configure(**options: Any) -> tuple[ConsumerConfig, bool]:
    """Return the configuration by these options, and whether the group's name was generated."""
    given, generated = given_by(on_brokers=False, **options)
    return ConsumerConfig.parse(given), generated


# -- the console consumer of the JVM: ConsoleConsumerTest, by name ------------------------------


def test_should_parse_valid_old_consumer_valid_config() -> None:
    """``--zookeeper --topic --from-beginning`` is a complete command line."""
    config, generated = configure(zookeeper="localhost:2181/c", from_beginning=True)
    assert (config.zookeeper_hosts, config.zookeeper_chroot) == ("localhost:2181", "/c")
    assert generated
    name, _, digits = config.group_id.rpartition("-")
    assert (name, len(digits), digits.isdecimal()) == ("console-consumer", 5, True)


@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_should_parse_valid_old_consumer_config_with_auto_offset_reset(reset: str) -> None:
    """An explicit reset policy is kept."""
    config, _ = configure(zookeeper="z", properties=[f"auto.offset.reset={reset}"])
    assert config.auto_offset_reset == reset


def test_should_set_auto_reset_to_smallest_when_from_beginning_configured() -> None:
    """``--from-beginning`` means ``auto.offset.reset=smallest``, also if that is set explicitly.
    ``largest`` is refused (testShouldExitOnInvalidConfigWithAutoOffsetResetAndConflicting...)."""
    said = configure(zookeeper="z", from_beginning=True, properties=["auto.offset.reset=smallest"])
    unsaid = configure(zookeeper="z", from_beginning=True)
    assert {said[0].auto_offset_reset, unsaid[0].auto_offset_reset} == {"smallest"}
    with pytest.raises(ConfigError, match="contradicts --from-beginning"):
        configure(zookeeper="z", from_beginning=True, properties=["auto.offset.reset=largest"])


def test_group_ids_provided_in_different_places_must_match(tmp_path: Path) -> None:
    """Different group ids in option, property and file are refused. Equal ones are accepted."""
    file = tmp_path / "c.properties"
    file.write_text("group.id=in-file\nzookeeper.connect=z\n")
    for group, properties, source in [
        ("other", [], str(file)),
        (None, ["group.id=other"], str(file)),
        ("other", ["group.id=another"], None),
    ]:
        with pytest.raises(ConfigError, match=r"group\.id has more than one value"):
            configure(zookeeper="z", group=group, properties=properties, file=source)
    config, generated = configure(group="in-file", properties=["group.id=in-file"], file=str(file))
    assert (config.group_id, generated) == ("in-file", False)
    assert configure(file=str(file))[0].group_id == "in-file"


def test_from_beginning_is_refused_when_the_group_has_offsets(
    cluster: LocalCluster, filled: str, group: str
) -> None:
    """A group with committed offsets would not start at the beginning. So the command refuses and
    says why."""
    first = ("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled)
    assert consume(*first, "--from-beginning", "--max-messages", "30").returncode == 0
    assert_clean_error(consume(*first, "--from-beginning"), 2, group, "--from-beginning")


def test_a_group_that_was_not_named_leaves_nothing(
    cluster: LocalCluster, filled: str, zk: KazooClient
) -> None:
    """Without ``--group`` the command generates a new group, and deletes its tree at the end."""
    before = set(zk.get_children("/consumers")) if zk.exists("/consumers") else set()
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--topic", filled),
        *("--from-beginning", "--max-messages", "30"),
    )
    assert done.returncode == 0, done.stderr
    left = set(zk.get_children("/consumers")) - before
    assert not [name for name in left if name.startswith("console-consumer-")]


# -- output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 3])
def test_values_one_a_line(
    cluster: LocalCluster, filled: str, group: str, zk: KazooClient, streams: int
) -> None:
    """stdout has each value once, and stderr the count. Exactly the printed messages are
    committed."""
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled),
        *("--from-beginning", "--max-messages", "20", "--streams", str(streams)),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 20
    assert set(lines) <= {f"m{i}" for i in range(30)}
    assert done.stderr == "Processed a total of 20 messages\n"
    assert committed(zk, group, filled) == 20
    assert members(zk, group) == []
    rest = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled),
        *("--max-messages", "10"),
    )
    assert sorted(lines + rest.stdout.splitlines()) == sorted(f"m{i}" for i in range(30))


def test_lines_of_several_streams_do_not_mix(cluster: LocalCluster, topic: str, group: str) -> None:
    """Long lines from four threads arrive whole, and in order within each partition."""
    cluster.create_topic(topic, partitions=4)
    payload = "x" * 20_000
    send(cluster.bootstrap, topic, [(b"%d" % i, f"{i}:{payload}".encode()) for i in range(400)])
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic),
        *("--from-beginning", "--max-messages", "400", "--streams", "4", "--format", "json"),
    )
    assert done.returncode == 0, done.stderr
    offsets: dict[int, list[int]] = {}
    numbers = set()
    for line in done.stdout.splitlines():
        message = json.loads(line)
        number, _, rest = message["value"].partition(":")
        assert rest == payload
        numbers.add(int(number))
        offsets.setdefault(message["partition"], []).append(message["offset"])
    assert numbers == set(range(400))
    assert all(found == list(range(len(found))) for found in offsets.values())


def test_json_shows_every_byte(cluster: LocalCluster, topic: str, group: str) -> None:
    """Text is a string, other bytes are base64, null is null. Nothing is lost or ambiguous."""
    cluster.create_topic(topic)
    sent: list[tuple[bytes | None, bytes | None]] = [
        (None, "Zo\u00eb\n".encode()),
        (b"\xff\x00", b"\xc3("),
        (b"tombstone", None),
        (b"", b""),
    ]
    send(cluster.bootstrap, topic, sent)
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic),
        *("--from-beginning", "--max-messages", "4", "--format", "json"),
    )

    def back(shown: Any) -> bytes | None:
        if isinstance(shown, dict):
            return base64.b64decode(shown["base64"])
        return shown.encode() if shown is not None else None

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(back(m["key"]), back(m["value"])) for m in found] == sent
    assert [(m["topic"], m["partition"], m["offset"]) for m in found] == [
        (topic, 0, i) for i in range(4)
    ]
    assert all(m["timestamp"] > 1_500_000_000_000 for m in found)


@pytest.mark.parametrize(("option", "expected"), [("--whitelist", "m"), ("--blacklist", "other")])
def test_filters(
    cluster: LocalCluster, filled: str, unique: str, group: str, option: str, expected: str
) -> None:
    """A white list reads the matching topics, and a black list reads the other topics."""
    other = f"other-{unique}"
    cluster.create_topic(other)
    send(cluster.bootstrap, other, [(None, b"other%d" % i) for i in range(5)])
    # The filter allows only this test's two topics, of all topics of the run.
    regex = f"{filled},nothing" if option == "--whitelist" else f"(?!{other}$).*"
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, option, regex),
        *("--from-beginning", "--max-messages", "5"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all(line.startswith(expected) for line in lines)


# -- ends -----------------------------------------------------------------------------------------


def test_timeout_is_success_only_with_messages(
    cluster: LocalCluster, filled: str, group: str
) -> None:
    """A timeout ends with 0 if something was printed, and with 1 if no message arrived."""
    base = ("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled)
    some = consume(*base, "--from-beginning", "--timeout-ms", "5000", "--streams", "2")
    assert (some.returncode, len(some.stdout.splitlines())) == (0, 30), some.stderr
    none = consume(*base, "--timeout-ms", "300")
    assert (none.returncode, none.stdout) == (1, "")
    assert "consumer.timeout.ms" in none.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_group_cleanly(
    cluster: LocalCluster,
    filled: str,
    group: str,
    zk: KazooClient,
    started: Any,
    number: int,
    status: int,
) -> None:
    """After Ctrl-C or SIGTERM the printed messages are committed and the registration is gone."""
    process = started(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled),
        "--from-beginning",
        *("--streams", "2"),
    )
    lines = [process.stdout.readline() for _ in range(30)]
    assert sorted(lines) == sorted(b"m%d\n" % i for i in range(30))
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (status, b""), err
    assert err == b"Processed a total of 30 messages\n"
    assert members(zk, group) == []
    assert committed(zk, group, filled) == 30
    assert not [p for p in range(3) if zk.exists(f"/consumers/{group}/owners/{filled}/{p}")]


def test_a_closed_pipe_leaves_the_group_cleanly(
    cluster: LocalCluster, topic: str, group: str, zk: KazooClient, started: Any
) -> None:
    """With ``| head`` the command ends by itself, leaves the group, and prints only the count."""
    cluster.create_topic(topic)
    send(cluster.bootstrap, topic, [(None, b"y" * 1000) for _ in range(2000)])
    process = started(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic),
        "--from-beginning",
    )
    assert process.stdout.readline() == b"y" * 1000 + b"\n"
    process.stdout.close()
    process.wait(timeout=20)
    error = process.stderr.read().decode()
    process.stdout = None
    assert process.returncode == 141, error
    assert error.startswith("Processed a total of ")
    assert len(error.splitlines()) == 1
    assert committed(zk, group, topic) == int(error.split()[4])
    assert members(zk, group) == []


def test_status_is_1_when_the_last_commit_fails(
    cluster: LocalCluster, topic: str, group: str, started: Any
) -> None:
    """If ZooKeeper is gone at the end, the offsets are not stored, and the status shows it."""
    cluster.create_topic(topic)
    send(cluster.bootstrap, topic, [(None, b"m%d" % i) for i in range(5)])
    with TcpProxy(cluster.zookeeper_server.port) as proxy:
        process = started(
            *("--zookeeper", proxy.address, "--group", group, "--topic", topic),
            *("--from-beginning", "--consumer-property", "zookeeper.session.timeout.ms=4000"),
        )
        for _ in range(5):
            process.stdout.readline()
        proxy.refuse()
        proxy.cut()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert b"error: interrupted, and the last commit failed" in err
    assert b"Traceback" not in err


# -- bad input ------------------------------------------------------------------------------------


def test_unreachable_zookeeper() -> None:
    """If there is no ZooKeeper at the address, the command says so within the timeout, with status
    1."""
    done = consume(
        *("--zookeeper", f"127.0.0.1:{free_port()}", "--group", "g", "--topic", "t"),
        *("--consumer-property", "zookeeper.connection.timeout.ms=1000"),
        timeout=20,
    )
    assert_clean_error(done, 1, "zookeeper.connect", "127.0.0.1", "1 s")


def test_missing_chroot(zookeeper: str) -> None:
    """The error names a chroot that does not exist."""
    done = consume("--zookeeper", f"{zookeeper}/no-such", "--group", "g", "--topic", "t")
    assert_clean_error(done, 2, "chroot /no-such")


def test_no_brokers(chroot: str) -> None:
    """An address without any registered broker is refused, as in the JVM's tool."""
    done = consume("--zookeeper", chroot, "--group", "g", "--topic", "t")
    assert_clean_error(done, 1, "/brokers/ids", "chroot")


def test_an_unknown_key_is_a_warning(cluster: LocalCluster, filled: str, group: str) -> None:
    """The JVM only warns of unknown keys, and its configuration files must work here. The warning
    names the nearest key."""
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled),
        *(
            "--from-beginning",
            "--max-messages",
            "1",
            "--consumer-property",
            "autocommit.enable=true",
        ),
    )
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "autocommit.enable" in warnings[0]
    assert "did you mean auto.commit.enable?" in warnings[0]


def test_verbose_logs_to_stderr(cluster: LocalCluster, filled: str, group: str) -> None:
    """``-v`` prints more, on stderr only."""
    done = consume(
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", filled),
        *("--from-beginning", "--max-messages", "30", "-vv"),
    )
    assert len(done.stdout.splitlines()) == 30
    assert len(done.stderr.splitlines()) > 5


def test_a_generated_group_that_a_member_joins_is_kept(
    zk: KazooClient,
    zookeeper: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The member registers after the command has checked for members and before the deletion. Its
    group keeps every znode, and the warning names the member."""
    path = f"/consumers/{group}"
    zk.create(f"{path}/offsets/t/0", b"5", makepath=True)
    zk.create(f"{path}/ids", b"")
    submit = ZkDriver.submit

    def joining(driver: ZkDriver, op: Any, *more: Any) -> None:
        changes = op.ops if isinstance(op, Multi) else (op,)
        if any(isinstance(change, Delete) for change in changes) and not members(zk, group):
            zk.create(f"{path}/ids/late", b"{}", ephemeral=True)
        submit(driver, op, *more)

    monkeypatch.setattr(ZkDriver, "submit", joining)
    config, _ = configure(zookeeper=zookeeper, group=group)
    delete_generated(config)
    assert members(zk, group) == ["late"]
    assert zk.get(f"{path}/offsets/t/0")[0] == b"5"
    warning = f"warning: group {group} is not deleted: group {group} is active: "
    assert capfd.readouterr().err.startswith(warning)
    zk.delete(f"{path}/ids/late")
    monkeypatch.undo()
    delete_generated(config)
    assert zk.exists(path) is None
    delete_generated(config)  # there is nothing left to delete
    assert capfd.readouterr().err == ""
