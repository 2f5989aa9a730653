"""The request versions that a broker supports.

Brokers since 0.10.0 report them (ApiVersions). 0.8.2 closes the connection, and 0.9 never answers,
so the table below has the versions that both have in common. Runs on the thread that opens a
connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from zkconsumer.broker.messages import ApiVersionsRequest, ApiVersionsResponse
from zkconsumer.broker.types import OpenConnection

FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
DESCRIBE_GROUPS: Final = 15
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
OFFSET_FOR_LEADER_EPOCH: Final = 23
SASL_AUTHENTICATE: Final = 36
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69

_HIGHEST_0_8 = {
    FETCH: 0, LIST_OFFSETS: 0, METADATA: 0, OFFSET_COMMIT: 1, OFFSET_FETCH: 1, FIND_COORDINATOR: 0,
}  # fmt: skip
LEGACY_VERSIONS: Final[Mapping[int, range]] = MappingProxyType(
    {key: range(highest + 1) for key, highest in _HIGHEST_0_8.items()}
)
"""Versions by API key of a 0.8.2 broker. 0.9 supports a few more, which are not needed."""


def supported_versions(connection: OpenConnection) -> Mapping[int, range] | None:
    """Ask a broker which versions of each request it supports. Return them by API key.

    Kafka 4 no longer supports some old versions. Return ``None`` if the broker answers with an
    error because it does not know this request. Raises ``BrokerUnavailableError`` if it closes the
    connection instead.
    """
    answer = connection.exchange(API_VERSIONS, 0, ApiVersionsRequest().encode(version=0))
    response = connection.decode(ApiVersionsResponse, answer, 0)
    if response.error_code:
        return None
    return {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}
