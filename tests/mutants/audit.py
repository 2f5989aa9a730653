"""Planted bugs of the audit: what each would do to a user is its name."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DAMAGE = "tests/audit/test_decode_damage.py"
_DECODE = "tests/audit/test_decode.py"
_HISTORY = "tests/audit/test_history.py"
_SOURCES = "tests/audit/test_sources.py"
_INTERVALS = "tests/audit/tables/test_intervals.py"
_FINDINGS = "tests/audit/tables/test_findings.py"
_REPORT = "tests/audit/tables/test_report.py"

AUDIT = [
    Mutant(
        "a record with a wrong checksum is decoded",
        "spark/zkaudit/decode/batches.py",
        "    if sound:\n",
        "    if sound or count:\n",
        (_DAMAGE,),
    ),
    Mutant(
        "damage at the end of a log is not reported",
        "spark/zkaudit/decode/txnlog.py",
        "    if found != checksum:\n",
        "    if found == -1:\n",
        (_DAMAGE,),
    ),
    Mutant(
        "operations of a multi that failed look applied",
        "spark/zkaudit/decode/txnlog.py",
        'if any(name == "error" for name, _ in bodies):',
        'if all(name == "error" for name, _ in bodies):',
        (_DECODE,),
    ),
    Mutant(
        "a path prefix leaves out sessions",
        "spark/zkaudit/decode/columns.py",
        "filters.path_prefix.encode()), True)",
        "filters.path_prefix.encode()), False)",
        (_SOURCES,),
    ),
    Mutant(
        "the digest of a right log differs",
        "spark/zkaudit/decode/digest.py",
        "        parent.pzxid = op.zxid\n",
        "        parent.pzxid = parent.czxid\n",
        (_DECODE,),
    ),
    Mutant(
        "half of the servers are a majority",
        "spark/zkaudit/history/committed.py",
        "    majority = voters // 2 + 1\n",
        "    majority = voters // 2\n",
        (_HISTORY,),
    ),
    Mutant(
        "what a minority did not log was never committed",
        "spark/zkaudit/history/committed.py",
        "    too_many = voters - majority + 1\n",
        "    too_many = voters - majority\n",
        (_HISTORY,),
    ),
    Mutant(
        "the missing begin of an epoch is no log gap",
        "spark/zkaudit/history/committed.py",
        "else first & ~_COUNTER | 1\n",
        "else first\n",
        (_HISTORY, "tests/audit/tables/test_tables.py"),
    ),
    Mutant(
        "all small logs are one task, however many",
        "spark/zkaudit/sources/files.py",
        "        if task and size + piece.size > most:\n",
        "        if task and piece.size > most:\n",
        (_SOURCES,),
    ),
    Mutant(
        "a stream leaves the log that is being written",
        "spark/zkaudit/sources/zookeeper.py",
        'if piece.zxid >= _zxid(at["file"])]',
        'if piece.zxid > _zxid(at["file"])]',
        (_SOURCES,),
    ),
    Mutant(
        "the last closeSession of a session ends its znodes",
        "spark/zkaudit/history/lifetimes.py",
        'F.min("zxid").alias("close_zxid")',
        'F.max("zxid").alias("close_zxid")',
        (_INTERVALS,),
    ),
    Mutant(
        "the first transaction behind a log gap belongs to the segment before it",
        "spark/zkaudit/history/staging.py",
        "lambda border: border <= zxid)",
        "lambda border: border < zxid)",
        (_INTERVALS,),
    ),
    Mutant(
        "a recreated topic was without an owner since its old one released it",
        "spark/zkaudit/findings/ownership.py",
        'recreated = F.col("made_zxid") > F.col("end_zxid")',
        'recreated = F.col("made_zxid") < F.col("end_zxid")',
        (_FINDINGS,),
    ),
    Mutant(
        "members without journals count as measured",
        "spark/zkaudit/tables/journals.py",
        'F.sum(F.col("step") * F.col("own"))',
        'F.sum(F.col("step"))',
        (_FINDINGS,),
    ),
    Mutant(
        "a group's name can end the page's script",
        "spark/zkaudit/report/page.py",
        'for character in "<>&":',
        'for character in "&":',
        (_REPORT,),
    ),
]
