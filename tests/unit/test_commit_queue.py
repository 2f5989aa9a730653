"""The queue of commits: what is sent, what is outdated, and what callers are told."""

from __future__ import annotations

from zkconsumer.core.common.commands import AnswerCommit
from zkconsumer.core.common.commit_queue import CommitQueue
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def queue(*requests: CommitRequested) -> CommitQueue:
    """A queue with these requests."""
    found = CommitQueue()
    for request in requests:
        found.add(request)
    return found


def sent(commits: CommitQueue) -> dict[TopicPartition, int]:
    """Return what the machine sends next, or nothing."""
    if not commits.next(lambda _tp, _position: None):
        return {}
    commits.token = 1
    return commits.sent


def test_an_automatic_commit_replaces_one_that_waits() -> None:
    """With a slow ZooKeeper they do not pile up. Commits of a user stay."""
    commits = queue(
        CommitRequested(None, {T0: 1}), CommitRequested(7, {T0: 2}), CommitRequested(None, {T0: 3})
    )
    assert sent(commits) == {T0: 2}
    commits.settle()
    assert sent(commits) == {T0: 3}
    commits.settle()
    assert sent(commits) == {}


def test_positions_of_released_partitions_are_not_sent() -> None:
    """This holds for waiting commits and for retries. Offsets that a user named are sent."""
    commits = queue(
        CommitRequested(1, {T0: 5, T1: 6}),
        CommitRequested(2, {T0: 7, T1: 8}),
        CommitRequested(3, {T0: 9}, strict=True),
    )
    assert sent(commits) == {T0: 5, T1: 6}
    commits.settle(again={T0, T1})
    commits.forget({T0})
    assert sent(commits) == {T1: 6}
    commits.settle()
    assert sent(commits) == {T1: 8}
    commits.settle()
    assert sent(commits) == {T0: 9}


def test_a_refusal_reaches_everyone_who_asked() -> None:
    """They get its reason. Callers that asked for nothing get no error."""
    commits = queue(
        CommitRequested(1, {T0: 5}), CommitRequested(2, {}), CommitRequested(3, {T0: 6})
    )
    sent(commits)
    commits.refuse("lost")
    told = [AnswerCommit(1, ("lost",)), AnswerCommit(2, ()), AnswerCommit(3, ("lost",))]
    assert commits.answers() == told
    assert commits.answers() == []


def test_a_refusal_ends_a_pause() -> None:
    """A new membership does not wait for the timer of the previous one, which was cancelled."""
    commits = queue(CommitRequested(1, {T0: 5}))
    commits.paused = True
    assert sent(commits) == {}
    commits.refuse("lost")
    commits.add(CommitRequested(2, {T0: 6}))
    assert sent(commits) == {T0: 6}


def test_the_answer_has_the_faults_of_every_attempt() -> None:
    """A partition that was refused first is not forgotten when the rest is retried."""
    commits = queue(CommitRequested(1, {T0: 5, T1: 6}))
    sent(commits)
    commits.settle(["t-0: refused"], again={T1})
    assert sent(commits) == {T1: 6}
    commits.settle(["t-1: refused"])
    assert commits.answers() == [AnswerCommit(1, ("t-0: refused", "t-1: refused"))]
