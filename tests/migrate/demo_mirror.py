"""``python -m tests.migrate.demo_mirror``: the original consumer's group is mirrored, cut over to a
new program, taken back, and cut over again, on real servers while a producer runs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.migrate.mirrored import Mirrored
from tests.support.legacy_jvm import JvmMembers
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster


def main() -> int:
    """Run the demo; return 0 when no message was lost, or repeated although it was committed."""
    try:
        with (
            LocalCluster("3.9") as cluster,
            JvmMembers("1.1") as jvm,
            tempfile.TemporaryDirectory() as folder,
            Mirrored(cluster, jvm, ("billing", "orders"), 4, Path(folder), say) as one,
        ):
            return story(one)
    except ZkConsumerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def story(one: Mirrored) -> int:
    """The whole story; return the exit status."""
    say("\n== Two members of the JVM's consumer read, and a mirror runs")
    old = one.old(2)
    one.start_mirror()
    one.wait_delivered(old, 300)
    say("\n== The old program stops, and the new one takes over: kafka-python and librdkafka")
    new = cut_over(one, old)
    say("\n== A way back: the mirror is killed, the new program stops, the old one starts again")
    one.kill_mirror()
    old = one.change(new, "undo", lambda: one.old(2))
    one.start_mirror()
    one.wait_delivered(old, 300)
    say("\n== And forward again, for good")
    new = cut_over(one, old)
    one.command("complete", "--execute")
    one.finish(new)
    say("\n== The ledger")
    say(one.figures())
    return 1 if one.lost() or one.repeated() > one.uncommitted else 0


def cut_over(one: Mirrored, old: list) -> list:  # type: ignore[type-arg]
    """Replace the old members; return the new ones."""
    new = one.change(old, "cut-over", lambda: one.new("kafka-python", "librdkafka"))
    one.wait_delivered(new, 300)
    return new  # type: ignore[no-any-return]


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
