"""Names of the protocol's error codes."""

from __future__ import annotations

from kafka.errors import for_code

from zkconsumer.core.common.error_codes import ErrorCode, name_of

#: Names that differ between kafka-python and Kafka's ``Errors``.
THEIRS = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UNKNOWN",
    ErrorCode.NONE: "NO_ERROR",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
    ErrorCode.MESSAGE_TOO_LARGE: "MESSAGE_SIZE_TOO_LARGE",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "INVALID_TOPIC",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "INVALID_REPLICATION_ASSIGNMENT",
}


def test_names_are_kafkas() -> None:
    """The numbers follow from the order of the names. kafka-python has the same names, each with
    its number."""
    newer = [ErrorCode.INVALID_REGULAR_EXPRESSION, ErrorCode.REBOOTSTRAP_REQUIRED]
    assert [int(code) for code in newer] == [128, 129], "not known to kafka-python: as in Kafka 4.0"
    for code in set(ErrorCode) - {*newer}:
        assert for_code(code).message == THEIRS.get(code, code.name), code.value


def test_any_code_has_a_name() -> None:
    """Newer brokers may have more codes. An unknown code is named by its number."""
    assert name_of(27) == "REBALANCE_IN_PROGRESS (27)"
    assert name_of(max(ErrorCode) + 1) == f"error {max(ErrorCode) + 1}"
    assert name_of(-7) == "error -7"
