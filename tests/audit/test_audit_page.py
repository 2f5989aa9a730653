"""The page about the audit has the thresholds of the incidents. Examples in docstrings run."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from zkaudit import group
from zkaudit.group import rules
from zkaudit.limits import Limits

from tests.audit.corpus.held_out import (
    HELD_OUT,
    HELD_OUT_LATE,
    HELD_OUT_OWNERSHIP,
    HELD_OUT_REAL,
)
from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES

PAGE = Path(__file__).parents[2] / "docs/explanation/audit.md"


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


@pytest.mark.parametrize("module", [group, rules])
def test_the_examples_of_the_packages_run(module: Any) -> None:
    """``x  # y`` means that the expression x is y."""
    assert module.__doc__ is not None
    example = dedent(module.__doc__.split("::\n\n")[1].split("\n\n")[0])
    names: dict[str, Any] = dict(vars(group))
    exec(compile(example, module.__name__, "exec"), names)
    results = re.findall(r"(?m)^([a-z\[].*?)  # (\[.*|Ended.*)$", example)
    assert results
    for expression, result in results:
        assert eval(expression, names) == eval(result, names)
