"""Kafka messages that kafka-python has no schema of: each class, and its JSON next to this file.

The JSON is in the format of Kafka's own schemas.
"""

from __future__ import annotations

from zkconsumer.broker.messages import ApiMessage


class ConsumerGroupHeartbeatRequest(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """KIP-848. kafka-python knows key 68, but has no schema for it."""


class ConsumerGroupHeartbeatResponse(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """KIP-848, the answer."""


class ConsumerGroupDescribeRequest(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """KIP-848. kafka-python knows key 69, but has no schema for it."""


class ConsumerGroupDescribeResponse(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """KIP-848, the answer."""
