"""Kafka messages for which kafka-python has no schema, each as a class, with its JSON next to this
file.

The JSON is in the format of Kafka's own schemas.
"""

from __future__ import annotations

from zkconsumer.broker.messages import ApiMessage


class ConsumerGroupHeartbeatRequest(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """The KIP-848 heartbeat request. kafka-python has its API key, 68, but no schema."""


class ConsumerGroupHeartbeatResponse(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """The answer to ``ConsumerGroupHeartbeatRequest`` (KIP-848)."""


class ConsumerGroupDescribeRequest(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """The KIP-848 request for descriptions of groups. kafka-python has its API key, 69, but no
    schema."""


class ConsumerGroupDescribeResponse(  # type: ignore[call-arg]  # kafka-python is untyped
    ApiMessage,  # type: ignore[misc]
    load_json=__name__,
):
    """The answer to ``ConsumerGroupDescribeRequest`` (KIP-848)."""
