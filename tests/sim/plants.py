"""The bugs that the simulator finds, and a search for the seeds at which it finds them.

``python -m tests.sim.plants`` plants each bug, plays runs until a rule is broken, and prints its
row of ``FOUND``. ``python -m tests.sim.plants 0:1000 stays_open`` searches only these seeds for
this bug.
"""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from multiprocessing import Pool
from typing import NamedTuple

import pytest

from tests.sim import (
    plants_consumer,
    plants_coordinator,
    plants_fetch,
    plants_live,
    plants_loop,
    plants_mixed,
    plants_zookeeper,
)
from tests.sim.runs.run import COORDINATIONS, run

Plant = Callable[[pytest.MonkeyPatch], None]

EVENTS = 60
"""Faults in each run."""
_HANGS_S = 30


class Found(NamedTuple):
    """The first seed that finds a planted bug, and the rule that breaks first."""

    coordination: str
    seed: int
    rule: str


FOUND: Mapping[str, Found] = {
    "begins_at_zookeepers_offset": Found("live", 5, "offset_carried_over"),
    "commits_changes_alone": Found("live", 14, "move_resumes"),
    "commits_in_zookeeper_alone": Found("live", 2, "move_resumes"),
    "delivers_with_one_lock": Found("live", 0, "both_locks"),
    "hears_of_no_mode": Found("live", 0, "move_resumes"),
    "keeps_what_an_expelled_member_has": Found("live", 5, "both_locks"),
    "leaves_the_ids_open": Found("live", 0, "legacy_kept_out"),
    "lets_plain_consumers_in_early": Found("live", 2, "move_resumes"),
    "needs_no_membership": Found("live", 0, "lease"),
    "unlocks_a_finished_move": Found("live", 7, "legacy_kept_out"),
    "answers_for_released_partitions": Found("coordinator", 17, "commit_stores"),
    "asks_for_commits_twice": Found("consumer", 4, "offsets_never_lowered"),
    "asks_for_the_last_record_again": Found("zookeeper", 0, "none_twice"),
    "asks_no_second_time": Found("coordinator", 6, "stable_at_rest"),
    "asks_with_a_backlog": Found("zookeeper", 11, "queue_bound"),
    "assigns_without_waking": Found("zookeeper", 0, "no_silent_partition"),
    "begins_where_zookeeper_says": Found("zookeeper", 11, "starts_at_committed"),
    "believes_a_refused_heartbeat": Found("coordinator", 37, "stable_at_rest"),
    "believes_any_registration": Found("zookeeper", 7, "registered_at_rest"),
    "believes_errors": Found("coordinator", 2, "lease"),
    "claims_without_touching_the_offset": Found("zookeeper", 3, "no_foreign_release"),
    "closes_no_stream": Found("zookeeper", 0, "end_is_heard"),
    "commits_no_more": Found("zookeeper", 0, "no_orphan_at_rest"),
    "commits_out_of_date": Found("coordinator", 154, "offsets_never_lowered"),
    "commits_without_a_generation": Found("coordinator", 62, "commit_in_generation"),
    "commits_without_condition": Found("restored", 17, "commits_fenced"),
    "consumes_early": Found("zookeeper", 0, "committed_is_processed"),
    "counts_the_coordinators_lease_from_the_answer": Found("consumer", 3, "lease"),
    "counts_the_lease_from_the_answer": Found("zookeeper", 1, "lease"),
    "counts_the_torn_batch": Found("coordinator", 0, "committed_is_processed"),
    "crashes_as_a_member": Found("bootstrap", 7, "no_orphan_at_rest"),
    "crashes_silently": Found("coordinator", 0, "end_is_heard"),
    "crashes_without_answers": Found("consumer", 29, "commits_answered"),
    "decodes_past_a_revoke": Found("consumer", 26, "nothing_after_revoke"),
    "delivers_below_the_position": Found("coordinator", 1, "none_twice"),
    "discards_everything": Found("bootstrap", 0, "none_lost"),
    "does_not_say_that_it_is_back": Found("bootstrap", 37, "no_lost_trigger"),
    "does_not_say_that_it_is_lost": Found("bootstrap", 0, "single_delivery"),
    "refreshes_nothing": Found("zookeeper", 0, "no_lost_trigger"),
    "drops_late": Found("zookeeper", 0, "none_twice"),
    "drops_the_backlog": Found("zookeeper", 34, "none_lost"),
    "drops_triggers_while_busy": Found("restored", 3, "no_lost_trigger"),
    "ends_without_answers": Found("consumer", 29, "commits_answered"),
    "enqueues_what_was_stopped": Found("zookeeper", 0, "none_twice"),
    "fetches_on_after_a_stop": Found("zookeeper", 0, "no_error_of_its_own"),
    "forgets_blocked_partitions": Found("zookeeper", 2, "no_orphan_at_rest"),
    "forgets_commits_of_a_lost_session": Found("consumer", 0, "commits_answered"),
    "forgets_failed_partitions": Found("zookeeper", 0, "no_silent_partition"),
    "forgets_stopped_partitions": Found("zookeeper", 0, "stopped_is_known"),
    "forgets_the_coordinator_in_a_listener": Found("coordinator", 291, "stable_at_rest"),
    "forgets_the_deadline": Found("coordinator", 4, "final_is_final"),
    "forgets_to_drop": Found("coordinator", 6, "committed_is_processed"),
    "forgets_what_was_dropped": Found("zookeeper", 0, "no_record_lost"),
    "has_no_fence": Found("coordinator", 0, "lease"),
    "has_no_lease": Found("zookeeper", 0, "lease"),
    "has_room_without_waking": Found("zookeeper", 1, "no_silent_partition"),
    "hears_no_coordinator": Found("coordinator", 1, "stable_at_rest"),
    "hears_no_watch": Found("zookeeper", 2, "no_lost_trigger"),
    "ignores_full_queues": Found("coordinator", 0, "queue_bound"),
    "ignores_resets": Found("bootstrap", 15, "committed_at_rest"),
    "joins_without_stopping": Found("coordinator", 0, "stopped_before_release"),
    "keeps_an_unknown_id": Found("coordinator", 0, "stable_at_rest"),
    "keeps_failed_partitions": Found("zookeeper", 0, "asked_by_one_worker"),
    "keeps_old_addresses": Found("consumer", 2, "no_silent_partition"),
    "keeps_old_brokers": Found("coordinator", 0, "no_silent_partition"),
    "keeps_old_timers": Found("zookeeper", 0, "timers_count_once"),
    "keeps_partitions_of_a_lost_session": Found("zookeeper", 0, "none_twice"),
    "keeps_what_an_old_session_read": Found("zookeeper", 2, "no_lost_trigger"),
    "keeps_what_was_taken": Found("coordinator", 6, "stopped_before_release"),
    "leads_with_its_own_topics": Found("coordinator", 5, "stable_at_rest"),
    "learns_brokers_without_waking": Found("fetch-committed", 0, "no_silent_partition"),
    "leaves_without_a_word": Found("coordinator", 18, "leaves_in_order"),
    "lets_go_and_tells_nobody": Found("coordinator", 8, "no_orphan_at_rest"),
    "loses_leaders_without_waking": Found("zookeeper", 0, "no_silent_partition"),
    "loses_timers": Found("zookeeper", 0, "no_lost_trigger"),
    "never_answers": Found("zookeeper", 0, "no_orphan_at_rest"),
    "never_comes_back": Found("coordinator", 2, "stable_at_rest"),
    "never_reads_again": Found("zookeeper", 23, "no_lost_trigger"),
    "never_resets": Found("coordinator", 0, "no_silent_partition"),
    "never_tells_of_room": Found("coordinator", 0, "no_silent_partition"),
    "passes_the_gate": Found("coordinator", 1, "gate"),
    "reads_no_topic_twice": Found("zookeeper", 33, "no_lost_trigger"),
    "releases_by_path": Found("zookeeper", 3, "no_foreign_release"),
    "releases_what_is_in_hand": Found("coordinator", 5, "release_waits"),
    "releases_while_fetching": Found("zookeeper", 0, "stopped_before_release"),
    "remembers_leaders": Found("zookeeper", 0, "no_silent_partition"),
    "removes_from_the_list_only": Found("zookeeper", 0, "stopped_is_not_asked_for"),
    "resets_again_and_again": Found("zookeeper", 0, "reset_with_reason"),
    "resets_what_was_stopped": Found("coordinator", 202, "committed_is_processed"),
    "retries_never": Found("zookeeper", 8, "no_silent_partition"),
    "revokes_queued_chunks_only": Found("consumer", 0, "committed_is_processed"),
    "revokes_the_current_chunk_only": Found("coordinator", 0, "nothing_after_revoke"),
    "skips_a_record": Found("zookeeper", 0, "committed_is_processed"),
    "starts_at_the_next_record": Found("zookeeper", 0, "committed_is_processed"),
    "starts_at_zero": Found("coordinator", 0, "starts_at_committed"),
    "stays_open": Found("zookeeper", 0, "gate"),
    "stays_with_a_failed_broker": Found("zookeeper", 0, "no_silent_partition"),
    "stores_in_kafka_without_asking": Found("zookeeper", 3, "commits_in_session"),
    "stops_without_waiting": Found("zookeeper", 1, "release_waits"),
    "swallows_listener_errors": Found("zookeeper", 3, "no_lost_trigger"),
    "takes_any_answer": Found("coordinator", 6, "stable_at_rest"),
    "takes_equal_names_for_equal_members": Found("zookeeper", 4, "no_lost_trigger"),
    "takes_the_newest": Found("coordinator", 0, "none_lost"),
    "trusts_remembered_positions": Found("zookeeper", 3, "starts_at_committed"),
    "trusts_watches_of_an_old_connection": Found("zookeeper", 72, "no_lost_trigger"),
    "waits_for_the_answer_under_way": Found("coordinator", 6, "stable_at_rest"),
    "wakes_nobody": Found("zookeeper", 2, "no_silent_partition"),
    "watches_no_progress": Found("coordinator", 2, "poll_expires"),
    "forgets_what_it_has_released": Found("restored", 207, "no_orphan_at_rest"),
    "believes_that_it_is_a_member": Found("consumer", 0, "stable_at_rest"),
    "gives_up_before_it_has_stopped": Found("consumer", 0, "owned_before_fetch"),
    "looks_only_when_idle": Found("consumer", 52, "no_orphan_at_rest"),
    "names_only_what_it_reads": Found("consumer", 52, "owned_before_fetch"),
    "never_leaves": Found("consumer", 4, "leaves_in_order"),
    "never_tells_what_it_has": Found("consumer", 1, "single_delivery"),
    "sends_a_stale_commit_never_again": Found("consumer", 9, "commits_answered"),
    "takes_a_classic_group_for_the_end": Found("mixed", 297, "stable_at_rest"),
    "takes_a_conversion_for_the_end": Found("mixed", 31, "stable_at_rest"),
    "gives_away_what_members_still_have": Found("mixed", 17, "no_foreign_release"),
    "forgets_the_leaderless": Found("fetch-committed", 10, "no_silent_partition"),
    "keeps_the_position_at_a_reset": Found("fetch", 29, "committed_is_processed"),
    "overtakes_with_a_reset": Found("fetch", 10, "none_twice"),
    "resets_while_a_chunk_ends": Found("fetch", 432, "committed_is_processed"),
    "delivers_what_was_aborted": Found("fetch-committed", 0, "none_aborted"),
    "looks_for_the_end_in_what_is_left": Found("fetch-committed", 0, "stream_works"),
    "takes_no_marker_for_the_end": Found("fetch-committed", 0, "committed_is_processed"),
}
"""Each bug, and the first run that finds it. Those of kind ``fetch`` need interleavings that are
rare in a whole member."""


def plants() -> dict[str, tuple[Plant, tuple[str, ...]]]:
    """Return all bugs by name, each with the coordinations in which it can show."""
    found: dict[str, tuple[Plant, tuple[str, ...]]] = {}
    modules = {
        plants_fetch: (*COORDINATIONS[:4], "fetch", "fetch-committed"),
        plants_loop: COORDINATIONS[:4],
        plants_zookeeper: (COORDINATIONS[0], "restored"),
        plants_coordinator: COORDINATIONS[1:3],
        plants_consumer: ("consumer",),
        plants_live: ("live",),
        plants_mixed: ("mixed",),
    }
    for module, coordinations in modules.items():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            takes = list(inspect.signature(function).parameters)
            if function.__module__ == module.__name__ and takes == ["patch"]:
                found[name] = function, coordinations
    return found


def search(name: str, seeds: Iterable[int]) -> str:
    """Plant a bug and play runs. Return the row about it."""
    plant, coordinations = plants()[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in seeds:
            for coordination in coordinations:
                signal.alarm(_HANGS_S)
                result = run(seed, coordination=coordination, events=EVENTS)
                signal.alarm(0)
                if result.violations:
                    rule = result.violations[0].rule
                    return f'    "{name}": Found("{coordination}", {seed}, "{rule}"),'
    return f"# not found: {name}"


def _safely(seeds: range, name: str) -> str:
    try:
        return search(name, seeds)
    except BaseException as error:  # noqa: BLE001 - the search continues with the other bugs
        return f"# {name}: {error!r}"


def _hangs(*_: object) -> None:
    raise TimeoutError("a run hangs")


def main(arguments: list[str]) -> None:
    """Run the search."""
    signal.signal(signal.SIGALRM, _hangs)
    first, count = 0, 1000
    if arguments and ":" in arguments[0]:
        first, count = map(int, arguments.pop(0).split(":"))
    names = arguments or sorted(plants())
    with Pool(2) as pool:
        for row in pool.imap_unordered(partial(_safely, range(first, first + count)), names):
            sys.stdout.write(row + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
