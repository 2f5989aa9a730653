"""Transactions as bytes, compared with kazoo's own."""

from __future__ import annotations

from kazoo.exceptions import NoNodeError, RuntimeInconsistency
from kazoo.protocol import serialization as kz
from kazoo.protocol.serialization import int_struct, multiheader_struct, stat_struct
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from zkconsumer.core.zookeeper.ops import Check, Create, Delete, SetData, Stat
from zkconsumer.zk.multi import MultiWrite, encode_acl

END = multiheader_struct.pack(-1, True, -1)


def test_a_transaction_is_sent_as_kazoo_does() -> None:
    """Every kind of operation, below a chroot, with two access lists."""
    for acl in (OPEN_ACL_UNSAFE, CREATOR_ALL_ACL):
        ours = MultiWrite(
            (
                Check("/a", 3),
                Create("/\u00fc", b"data", True),
                Create("/c", b""),
                SetData("/d", b"x"),
                Delete("/e", 7),
            ),
            "/root",
            encode_acl(acl),
            None,
        )
        theirs = kz.Transaction(
            [
                kz.CheckVersion("/root/a", 3),
                kz.Create("/root/\u00fc", b"data", acl, 1),
                kz.Create("/root/c", b"", acl, 0),
                kz.SetData("/root/d", b"x", -1),
                kz.Delete("/root/e", 7),
            ]
        )
        assert ours.serialize() == bytes(theirs.serialize())
        assert ours.type == theirs.type


def test_the_answer_has_a_result_for_each_operation() -> None:
    """Only a change of data returns the stat, wherever the answer begins."""
    answer = b"".join(
        (
            multiheader_struct.pack(kz.CheckVersion.type, False, 0),
            multiheader_struct.pack(kz.Create.type, False, 0) + kz.write_string("/root/b"),
            multiheader_struct.pack(kz.SetData.type, False, 0) + stat_struct.pack(*range(11)),
            multiheader_struct.pack(kz.Delete.type, False, 0),
            END,
        )
    )
    for begin in (0, 7):
        results = MultiWrite.deserialize(b"x" * begin + answer, begin)
        assert results == [None, None, Stat(0, 1, 4, 7), None]
        assert isinstance(results[2], Stat)
        assert results[2].mtime_ms == 3


def test_a_failed_transaction_has_the_number_of_an_error_for_each_operation() -> None:
    """0 for those that come before the one that failed."""
    numbers = [0, NoNodeError.code, RuntimeInconsistency.code]
    parts = [multiheader_struct.pack(-1, False, n) + int_struct.pack(n) for n in numbers]
    assert MultiWrite.deserialize(b"".join(parts) + END, 0) == numbers
