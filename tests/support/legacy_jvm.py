"""The original consumer as members of a group, with all that tests ask of it: the messages that it
delivers, orders to commit and leave, its assignor and its producer.

Any thread may call the methods.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any, Self

from tests.support.groups import Delivery
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import ClusterError
from zkconsumer.servers import legacy_jvm
from zkconsumer.servers.waiting import wait_until

_ANSWER_SECONDS = 40.0


class JvmMembers(legacy_jvm.JvmMembers):
    """One JVM that runs members of the original consumer. Open from construction to ``close``."""

    def __init__(self, kafka: str = "1.1") -> None:
        self._answers: dict[str, list[str]] = {}
        self._tags = 0
        super().__init__(kafka)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let all members leave their groups, then end the JVM."""
        try:
            with self._lock:
                members = list(self._members.values())
            for member in members:
                if self.running and isinstance(member, JvmMember):
                    member.shutdown()
        finally:
            self.kill()

    def assignment(
        self,
        zookeeper: str,
        group: str,
        strategy: str,
        members: Sequence[str],
        exclude_internal: bool = True,
    ) -> dict[TopicPartition, str]:
        """Return each thread's partitions, computed by the original assignor of the ``members``.

        It reads the group's registrations from ZooKeeper once for each member named (consumer ids).
        Raises ClusterError when two members' results differ, or one cannot be computed.
        """
        tag = self._tag()
        words = [zookeeper, group, strategy, str(exclude_internal).lower(), *members]
        self._order("assign", tag, *words)
        answer = self._answer(tag)
        result: dict[TopicPartition, str] = {}
        for topic, partition, thread in zip(answer[0::3], answer[1::3], answer[2::3], strict=True):
            tp = TopicPartition(topic, int(partition))
            if result.setdefault(tp, thread) != thread:
                raise ClusterError(f"the original assignors of {members} differ about {tp}")
        return result

    def produce(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        values: Sequence[bytes],
        codec: str = "none",
    ) -> list[int]:
        """Send values with this release's own producer, in batches; return their offsets.

        ``codec`` is the producer's ``compression.type``: none, gzip, snappy or lz4. Raises
        ClusterError.
        """
        tag = self._tag()
        texts = [base64.b64encode(value).decode() for value in values]
        self._order("produce", tag, bootstrap, topic, str(partition), codec, *texts)
        return [int(offset) for offset in self._answer(tag)]

    def _tag(self) -> str:
        with self._lock:
            self._tags += 1
            return f"#{self._tags}"

    def _answer(self, tag: str) -> list[str]:
        wait_until(
            lambda: tag in self._answers or not self.running,
            _ANSWER_SECONDS,
            "the JVM has answered",
        )
        with self._lock:
            kind, *words = self._answers.pop(tag, ["failed", "its JVM has ended"])
        if kind == "failed":
            raise ClusterError(f"the original consumer's JVM: {words[0]}")
        return words

    def _report(self, words: Sequence[str]) -> None:
        with self._lock:
            if words[1] not in self._members:
                self._answers[words[1]] = [words[0], *words[2:]]
        super()._report(words)

    def _remove(self, member: legacy_jvm.JvmMember) -> None:
        with self._lock:
            self._members.pop(member.consumer_id, None)


class JvmMember(legacy_jvm.JvmMember):
    """One member of the original consumer, with the messages that its streams gave out."""

    jvm: JvmMembers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.deliveries: list[Delivery] = []
        super().__init__(*args, **kwargs)

    def commit(self, timeout: float = 30.0) -> None:
        """Let the member commit, and wait until it has. Raises ClusterError."""
        count, already = self._counts["committed"] + 1, len(self.failures)
        self.jvm._order("commit", self.consumer_id)
        self._await("committed", count, timeout, already)

    def shutdown(self, timeout: float = 30.0) -> None:
        """Let the member leave the group cleanly, and wait until its streams have ended.
        Idempotent."""
        if self._counts["left"]:
            return
        already = len(self.failures)
        self.jvm._order("leave", self.consumer_id)
        self._await("left", 1, timeout, already)
        self.jvm._remove(self)

    def leave(self) -> None:
        """Shut it down. Raises ClusterError if a part of it had failed before."""
        self.shutdown()
        if self.failures:
            raise ClusterError(f"the original consumer {self.consumer_id}: {self.failures[0]}")

    def _report(self, kind: str, words: Sequence[str]) -> None:
        if kind == "message":
            _, topic, partition, offset, text = words
            value = None if text == "null" else base64.b64decode(text)
            at = time.monotonic()
            self.deliveries.append(Delivery(at, int(partition), int(offset), value, topic))
        else:
            super()._report(kind, words)
