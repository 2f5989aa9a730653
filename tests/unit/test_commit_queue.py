"""The queue of commits: what is sent, what is outdated, and what callers are told."""

from __future__ import annotations

from zkconsumer.core.common.commands import AnswerCommit
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.machine import CommitQueue
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


def test_positions_from_before_a_reset_are_not_sent() -> None:
    """This holds for waiting commits and for retries. Offsets that a user named are sent."""
    commits = queue(CommitRequested(1, {T0: 5, T1: 6}))
    assert sent(commits) == {T0: 5, T1: 6}
    commits.add(CommitRequested(2, {T0: 7, T1: 8}))
    commits.add(CommitRequested(3, {T0: 9}, strict=True))
    commits.settle(again={T0, T1})
    commits.forget({T0})
    assert sent(commits) == {T1: 6}
    commits.settle()
    assert sent(commits) == {T1: 8}
    commits.settle()
    assert sent(commits) == {T0: 9}


def test_callers_get_the_answer_of_the_final_positions() -> None:
    """Partitions stop while commits wait or are under way. What is sent later has their final
    positions; an automatic commit leaves them out, and offsets that a user named stay."""
    commits = queue(CommitRequested(1, {T0: 5, T1: 6}))
    assert sent(commits) == {T0: 5, T1: 6}
    commits.add(CommitRequested(2, {T0: 7, T1: 8}))
    commits.add(CommitRequested(3, {T0: 4}, strict=True))
    commits.add(CommitRequested(None, {T0: 7, T1: 8}))
    commits.stopped({T0: 9})
    commits.settle(["t-1: refused"], again={T0})
    assert sent(commits) == {T0: 9}
    commits.settle()
    assert commits.answers() == [AnswerCommit(1, ("t-1: refused",))]
    found = []
    while positions := sent(commits):
        commits.settle()
        found.append(positions)
    assert found == [{T0: 9, T1: 8}, {T0: 4}, {T1: 8}]


def test_a_position_that_cannot_be_sent_any_more_is_a_fault_unless_it_is_stored() -> None:
    """The partition was released while the commit waited. The caller believes its answer."""
    commits = queue(CommitRequested(1, {T0: 5}))
    assert not commits.next(lambda _tp, _position: "not owned")
    commits.stored = {T0: 5}
    for number, position in ((2, 5), (3, 6)):
        commits.add(CommitRequested(number, {T0: position}))
        assert not commits.next(lambda _tp, _position: "not owned")
    commits.add(CommitRequested(4, {T0: 5}, strict=True))
    assert not commits.next(lambda _tp, _position: "not owned")
    faults = {answer.request: answer.faults for answer in commits.answers()}
    refused = ("t-0: not owned",)
    assert faults == {1: refused, 2: (), 3: refused, 4: refused}


def test_a_refusal_does_not_concern_what_is_stored() -> None:
    """The last commit before the release has stored the positions of one that waits."""
    commits = queue(CommitRequested(1, {T0: 5}))
    assert sent(commits) == {T0: 5}
    commits.add(CommitRequested(2, {T0: 6}))
    commits.add(CommitRequested(3, {T0: 6, T1: 1}))
    commits.stored = {T0: 6}
    commits.refuse("shut down")
    faults = {answer.request: answer.faults for answer in commits.answers()}
    assert faults == {1: (), 2: ("shut down",), 3: ("shut down",)}


def test_a_refusal_concerns_a_commit_whose_positions_a_reset_has_emptied() -> None:
    """It was sent, and nobody knows whether it is stored."""
    commits = queue(CommitRequested(1, {T0: 5}))
    assert sent(commits) == {T0: 5}
    commits.token = 1
    commits.forget({T0})
    commits.refuse("lost")
    assert commits.answers() == [AnswerCommit(1, ("lost",))]


def test_a_refusal_reaches_everyone_who_asked() -> None:
    """They get its reason. Callers that asked for nothing get no error."""
    commits = queue(
        CommitRequested(1, {T0: 5}), CommitRequested(2, {}), CommitRequested(3, {T0: 6})
    )
    sent(commits)
    commits.add(CommitRequested(4, {T0: 7}))
    commits.refuse("lost")
    refused = [AnswerCommit(caller, ("lost",)) for caller in (1, 3, 4)]
    assert commits.answers() == [AnswerCommit(2, ()), *refused]
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


def test_commits_that_wait_are_carried_out_as_one() -> None:
    """However many a program asks for while one is under way, the next one answers all of them."""
    commits = queue(CommitRequested(0, {T0: 1}))
    assert sent(commits) == {T0: 1}
    for number in range(1, 10_000):
        commits.add(CommitRequested(number, {T0: number, T1: 5}))
    commits.settle()
    assert sent(commits) == {T0: 9_999, T1: 5}
    commits.settle(["t-1: refused"])
    told = [AnswerCommit(number, ("t-1: refused",)) for number in range(1, 10_000)]
    assert commits.answers() == [AnswerCommit(0, ()), *told]
    assert sent(commits) == {}


def test_offsets_that_a_user_named_join_only_lower_ones() -> None:
    """A lower offset may be refused, and another partition has faults of its own. The order of
    commits of a partition stays."""
    commits = queue(
        CommitRequested(1, {T0: 5}, strict=True),
        CommitRequested(2, {T1: 6}, strict=True),
        CommitRequested(3, {T0: 7}, strict=True),  # joins 1
        CommitRequested(4, {T0: 6}, strict=True),
        CommitRequested(5, {T0: 8, T1: 9}, strict=True),
        CommitRequested(6, {T1: 9}, strict=True),  # does not overtake 5
        CommitRequested(7, {T0: 9}),
        CommitRequested(8, {T0: 9}, strict=True),  # does not overtake 7
    )
    found = []
    while positions := sent(commits):
        commits.settle()
        found.append((positions, [answer.request for answer in commits.answers()]))
    assert found == [
        ({T0: 7}, [1, 3]),
        ({T1: 6}, [2]),
        ({T0: 6}, [4]),
        ({T0: 8, T1: 9}, [5]),
        ({T1: 9}, [6]),
        ({T0: 9}, [7]),
        ({T0: 9}, [8]),
    ]


def test_a_request_whose_caller_has_gone_is_dropped() -> None:
    """Unless it is under way, or others wait for the same commit."""
    commits = queue(CommitRequested(1, {T0: 5}, strict=True))
    assert sent(commits) == {T0: 5}
    for request in (2, 3):
        commits.add(CommitRequested(request, {T0: 6}))
    commits.add(CommitRequested(4, {T1: 7}, strict=True))
    for gone in (1, 2, 4, 99):
        commits.abandon(gone)
    commits.settle()
    assert sent(commits) == {T0: 6}
    commits.settle()
    assert sent(commits) == {}
    answers = {answer.request: bool(answer.faults) for answer in commits.answers()}
    assert answers == {1: False, 2: True, 3: False, 4: True}
