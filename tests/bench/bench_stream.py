"""Measure the rounds of `zkaudit stream` after a long history.

One process follows the logs of 200 groups on one server (``BENCH_GROUPS`` sets another number).
Its first round reads the history, which has 2,000,000 transactions (``BENCH_STREAM``). Before each
further round, 1,000 transactions of ten groups are added. One group has a fifth of all
transactions, and is not among these. Spark runs as ``local[2]``. A round ends when its tables are
published. The report is written after each round and measured by itself, because the command
writes it only a tenth of the time. Each ratio is the target of 10 s divided by the time of a round,
so 1 or more means that the target is reached.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from zkaudit.job.audit import Options
from zkaudit.job.spark import session
from zkaudit.job.stream import stream
from zkaudit.report import page as report

from zkconsumer.runtime.undisturbed import Alarm

sys.path.insert(0, str(Path(__file__).parent))
from audit_logs import History

GROUPS: Final = int(os.environ.get("BENCH_GROUPS", "200"))
TOUCHED: Final = 10
NEW: Final = 1_000
TARGET_S: Final = 10.0


def run(rounds: int) -> Iterator[tuple[str, str, list[float]]]:
    """Yield case, figure and the value of each round."""
    transactions = int(os.environ.get("BENCH_STREAM", "2000000"))
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as name:
        folder = Path(name)
        history = History(folder / "logs", groups=GROUPS)
        history.write(transactions)
        spark = session("local[2]", {"spark.ui.showConsoleProgress": "false"})
        stop = Alarm()
        took: list[float] = []
        reports: list[float] = []
        begin = time.perf_counter()

        def on_summary(_: dict[str, Any]) -> None:
            nonlocal begin
            took.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            report.write(folder / "out")
            reports.append(time.perf_counter() - begin)
            if len(took) > rounds:
                stop.set()
                return
            if len(took) == 1:
                history.groups = history.groups[-TOUCHED:]
            history.write(history.out.count + NEW)
            begin = time.perf_counter()

        try:
            options = Options([str(folder / "logs")], str(folder / "out"))
            stream(spark, options, 0.0, stop, on_summary)
        finally:
            spark.stop()
        yield f"first round, {transactions:,}", "seconds", took[:1]
        yield f"a round with {NEW:,} new", "seconds", took[1:]
        yield "the report", "seconds", reports
        yield f"a round, {TARGET_S:.0f} s", "ratio", [TARGET_S / seconds for seconds in took[1:]]
