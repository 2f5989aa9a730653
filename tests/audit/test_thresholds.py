"""The page about the incidents states the thresholds with which they are audited."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from zkaudit.limits import Limits

from tests.audit.corpus.held_out import HELD_OUT
from tests.audit.corpus.held_out_late import HELD_OUT_LATE
from tests.audit.corpus.held_out_ownership import HELD_OUT_OWNERSHIP
from tests.audit.corpus.held_out_real import HELD_OUT_REAL
from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES

PAGE = Path(__file__).parents[2] / "docs/explanation/audit-incidents.md"


def test_the_page_has_every_threshold_that_is_not_the_default() -> None:
    """A reader must not take the figures for those of the defaults."""
    rows = re.findall(r"(?m)^\| `--([a-z-]+)` \| (\d+) \| (\d+) \| (\d+)", PAGE.read_text())
    default = {limit.name: limit.default for limit in fields(Limits)}
    corpora = (HELD_OUT, HELD_OUT_LATE, HELD_OUT_OWNERSHIP)
    names = {name for one in (*corpora, HELD_OUT_REAL) for name in one.limits}
    assert {name.replace("-", "_") for name, *_ in rows} == names
    for option, usual, real, other in rows:
        name = option.replace("-", "_")
        assert float(usual) == default[name]
        assert float(real) == HELD_OUT_REAL.limits.get(name, default[name])
        for one in corpora:
            assert float(other) == one.limits.get(name, default[name])
    differs = {
        name
        for name, value in WRITTEN_WITH_THE_RULES.limits.items()
        if value != HELD_OUT.limits[name]
    }
    assert not differs
    assert "standstill_seconds" not in WRITTEN_WITH_THE_RULES.limits
