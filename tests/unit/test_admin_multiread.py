"""The multi-read request and its answer, compared with kazoo's own parts."""

from __future__ import annotations

from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    int_struct,
    multiheader_struct,
    stat_struct,
)

from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.zk.multi import NO_NODE, MultiRead


def test_the_request_is_made_of_reads() -> None:
    """Each path is a read without a watch after its header. A last header ends the request."""
    paths = ("/a/b", "/\u00fc")
    wanted = b"".join(
        multiheader_struct.pack(GetData.type, False, -1) + bytes(GetData(path, None).serialize())
        for path in paths
    )
    assert MultiRead(paths, False).serialize() == wanted + multiheader_struct.pack(-1, True, -1)


def test_an_answer_with_data_nothing_and_an_error() -> None:
    """Data, null data and a missing znode are distinct, wherever the answer begins."""
    found = multiheader_struct.pack(GetData.type, False, 0)
    stat = stat_struct.pack(*range(11))
    answer = b"".join(
        (
            found + int_struct.pack(3) + b"abc" + stat,
            found + int_struct.pack(-1) + stat,
            multiheader_struct.pack(-1, False, NO_NODE) + int_struct.pack(NO_NODE),
            found + int_struct.pack(0) + stat,
            multiheader_struct.pack(-1, True, -1),
        )
    )
    for begin in (0, 7):
        results = MultiRead.deserialize(b"x" * begin + answer, begin)
        assert [one.data if isinstance(one, Node) else one for one in results] == [
            b"abc",
            b"",
            NO_NODE,
            b"",
        ]
        assert isinstance(results[0], Node)
        assert (results[0].stat, results[0].stat.mtime_ms) == (Stat(0, 1, 4, 7), 3)
    assert MultiRead.deserialize(multiheader_struct.pack(-1, True, -1), 0) == []


def test_lists_of_children() -> None:
    """Each path is a request for children. The answer's names differ from errors, also if there are
    none."""
    request = MultiRead(("/a",), True).serialize()
    assert request == (
        multiheader_struct.pack(GetChildren.type, False, -1)
        + bytes(GetChildren("/a", None).serialize())
        + multiheader_struct.pack(-1, True, -1)
    )
    found = multiheader_struct.pack(GetChildren.type, False, 0)
    name = "\u00fc".encode()
    answer = b"".join(
        (
            found + int_struct.pack(2) + int_struct.pack(1) + b"b" + int_struct.pack(2) + name,
            multiheader_struct.pack(-1, False, NO_NODE) + int_struct.pack(NO_NODE),
            found + int_struct.pack(0),
            multiheader_struct.pack(-1, True, -1),
        )
    )
    assert MultiRead.deserialize(answer, 0) == [["b", "\u00fc"], NO_NODE, []]
