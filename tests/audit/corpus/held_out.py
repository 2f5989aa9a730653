"""The held-out corpora: recordings, each with a table of its incidents and their labels.

``recorded/NAME/labels.toml`` is the table, and its head says how the recording was made. Each line
is an incident, which has a group of this name. ``must``, ``late`` and ``may`` are as in
``incidents.Incident``; ``what`` says what happened, where the name does not. What a group did is in
the recording: ``zkaudit log GROUP`` prints it.
"""

from __future__ import annotations

import tomllib
from typing import Final

from tests.audit.corpus.incidents import RECORDED, Corpus, Incident


def labelled(name: str) -> Corpus:
    """Return a corpus that is a recording with labels."""
    table = tomllib.loads((RECORDED / name / "labels.toml").read_text(encoding="utf-8"))
    incidents = {}
    for group, row in table["incidents"].items():
        must, late, may = (tuple(row.get(key, ())) for key in ("must", "late", "may"))
        incidents[group] = Incident(group, None, must, late if "late" in row else must, may)
    return Corpus(name, table["limits"], incidents)


HELD_OUT: Final = labelled("held_out")
HELD_OUT_OWNERSHIP: Final = labelled("held_out_ownership")
HELD_OUT_LATE: Final = labelled("held_out_late")
HELD_OUT_REAL: Final = labelled("held_out_real")
