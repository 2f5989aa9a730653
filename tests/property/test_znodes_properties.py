"""Contents of znodes are read back unchanged. ``tests/fuzz`` tries hostile ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings, strategies as st

from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.znodes import (
    MAX_STREAMS,
    decode_offset,
    decode_registration,
    encode_offset,
    encode_registration,
    is_legal_topic,
)
from zkconsumer.errors import ZnodeFormatError

PATH = "/some/znode"


def test_depth_is_refused_alike_at_any_stack_depth() -> None:
    """Whether nesting is too deep does not depend on the depth of the caller's stack."""
    data = b'{"subscription":{"t":1},"pattern":"static","x":' + b"[" * 400 + b"]" * 400 + b"}"

    def outcome(frames: int) -> str:
        if frames:
            return outcome(frames - 1)
        try:
            return str(decode_registration(PATH, data))
        except ZnodeFormatError:
            return "refused"

    assert outcome(0) == outcome(600) == "refused"


regexes = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
subscriptions = st.one_of(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True).filter(is_legal_topic),
        st.integers(1, MAX_STREAMS),
        max_size=6,
    ).map(lambda topics: Subscription(Pattern.STATIC, topics)),
    st.builds(
        lambda pattern, regex, streams: Subscription(pattern, {regex: streams}),
        st.sampled_from([Pattern.WHITE_LIST, Pattern.BLACK_LIST]),
        regexes,
        st.integers(1, MAX_STREAMS),
    ),
)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(subscription=subscriptions, timestamp=st.integers(0, 2**42))
def test_what_is_written_is_read_back(subscription: Subscription, timestamp: int) -> None:
    """Every registration that can be written is standard JSON, and is read back unchanged."""
    data = encode_registration(subscription, timestamp)
    assert decode_registration(PATH, data) == subscription
    document: dict[str, Any] = json.loads(data)
    assert list(document) == ["version", "subscription", "pattern", "timestamp"]
    assert document["timestamp"] == str(timestamp)


@given(offset=st.integers(0, 2**63 - 1))
def test_offsets_are_read_back(offset: int) -> None:
    """Every offset that can be written is read back unchanged."""
    assert decode_offset(PATH, encode_offset(offset)) == offset
