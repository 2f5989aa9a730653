"""The classes of kafka-python that encode and decode requests. Only this module imports them.

They are internal to kafka-python, so a release may rename them. ``pyproject.toml`` allows one
minor version. Importing this module raises UnsupportedLibraryError if a class is missing.
"""

from __future__ import annotations

from typing import Final

from kafka import __version__

from zkconsumer.errors import UnsupportedLibraryError

SUPPORTED: Final = ">=3.0,<3.1"
"""Supported versions, as in ``pyproject.toml``."""

try:
    # Used by zkconsumer.core.groups.assignors.sticky, which knows nothing of this package.
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor as _StickyAssignmentExecutor,  # noqa: F401
        StickyAssignorMemberMetadataV1 as _StickyAssignorMemberMetadataV1,  # noqa: F401
    )
    from kafka.errors import KafkaError as KafkaError
    from kafka.net.sasl import (
        get_sasl_mechanism as get_sasl_mechanism,
        register_sasl_mechanism as register_sasl_mechanism,
    )
    from kafka.net.sasl.oauth import AbstractTokenProvider as AbstractTokenProvider
    from kafka.protocol.admin import (
        DescribeConfigsRequest as DescribeConfigsRequest,
        DescribeConfigsResponse as DescribeConfigsResponse,
        DescribeGroupsRequest as DescribeGroupsRequest,
        DescribeGroupsResponse as DescribeGroupsResponse,
        ListGroupsRequest as ListGroupsRequest,
        ListGroupsResponse as ListGroupsResponse,
    )
    from kafka.protocol.api_key import ApiKey as ApiKey
    from kafka.protocol.api_message import ApiMessage as ApiMessage
    from kafka.protocol.consumer import (
        HeartbeatRequest as HeartbeatRequest,
        HeartbeatResponse as HeartbeatResponse,
        JoinGroupRequest as JoinGroupRequest,
        JoinGroupResponse as JoinGroupResponse,
        LeaveGroupRequest as LeaveGroupRequest,
        LeaveGroupResponse as LeaveGroupResponse,
        ListOffsetsRequest as ListOffsetsRequest,
        ListOffsetsResponse as ListOffsetsResponse,
        OffsetCommitRequest as OffsetCommitRequest,
        OffsetCommitResponse as OffsetCommitResponse,
        OffsetDeleteRequest as OffsetDeleteRequest,
        OffsetDeleteResponse as OffsetDeleteResponse,
        OffsetFetchRequest as OffsetFetchRequest,
        OffsetFetchResponse as OffsetFetchResponse,
        OffsetForLeaderEpochRequest as OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse as OffsetForLeaderEpochResponse,
        SyncGroupRequest as SyncGroupRequest,
        SyncGroupResponse as SyncGroupResponse,
    )
    from kafka.protocol.metadata import (
        ApiVersionsRequest as ApiVersionsRequest,
        ApiVersionsResponse as ApiVersionsResponse,
        FindCoordinatorRequest as FindCoordinatorRequest,
        FindCoordinatorResponse as FindCoordinatorResponse,
        MetadataRequest as MetadataRequest,
        MetadataResponse as MetadataResponse,
    )

    _request = MetadataRequest(topics=[]).encode(version=0)
    _answer = MetadataResponse.decode(bytes(8), version=0)
    if (MetadataRequest.API_KEY, _request, _answer.topics) != (3, bytes(4), []):
        raise TypeError("messages are not encoded as expected")
except (ImportError, AttributeError, TypeError) as error:
    raise UnsupportedLibraryError("kafka-python", __version__, SUPPORTED, str(error)) from error
