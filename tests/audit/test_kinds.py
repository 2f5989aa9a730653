"""The table of kinds of findings agrees with the rules, the corpora and itself. No Spark."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from zkaudit import findings
from zkaudit.findings.kinds import KINDS, LASTING, NOT_LOOKED_FOR, page
from zkaudit.group import records, rules
from zkaudit.limits import NOT_COVERED, SEVERITIES

from tests.audit.corpus.judge import JUDGED

_KIND = 2
"""Which argument of function ``finding`` is the kind."""


def _modules(*packages: ModuleType) -> Iterable[Path]:
    for package in packages:
        yield from sorted(Path(str(package.__file__)).parent.glob("*.py"))


def _literals(node: ast.AST) -> set[str]:
    """The texts in an expression, without names of columns."""
    inside = {
        arg
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "F.col"
        for arg in call.args
    }
    return {
        leaf.value
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str) and leaf not in inside
    }


def _kinds_in(path: Path) -> set[str]:
    """The kinds that a module of rules gives to findings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts, results = dict[str, ast.expr](), dict[str, list[ast.expr]]()
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            texts[ast.unparse(node.target)] = node.value
        elif isinstance(node, ast.FunctionDef):
            returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
            results[node.name] = [value for value in returned if value is not None]

    def given(value: ast.expr) -> set[str]:
        if isinstance(value, ast.Name):
            return given(texts[value.id])
        if isinstance(value, ast.IfExp):
            return given(value.body) | given(value.orelse)
        if isinstance(value, ast.Call):
            return set[str]().union(*map(given, results[ast.unparse(value.func)]))
        return _literals(value)

    kinds = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("kind", "KIND"):
            kinds |= _literals(node.value)
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) == "finding" and len(node.args) > _KIND:
                kinds |= _literals(node.args[_KIND])
            for word in node.keywords:
                if ast.unparse(node.func) == "Finding" and word.arg == "kind":
                    kinds |= given(word.value)
    return kinds


def test_every_kind_of_a_rule_is_in_the_table_and_the_other_way_round() -> None:
    """The table has exactly the kinds that the rules give, and the one for missing logs."""
    modules = (path for path in _modules(findings, records, rules) if path.name != "kinds.py")
    assert set().union(*map(_kinds_in, modules)) | {NOT_COVERED} == set(KINDS)


def test_the_rules_of_logs_find_all_kinds_but_those_that_need_more() -> None:
    """``zkaudit findings`` applies the rules of the fold to logs, and all others need more."""
    of_logs = set().union(*map(_kinds_in, _modules(rules)))
    others = set().union(*map(_kinds_in, _modules(records, findings)))
    assert set(NOT_LOOKED_FOR) == set(KINDS) - of_logs - {NOT_COVERED}
    assert set(NOT_LOOKED_FOR) < others


def test_every_label_of_an_incident_names_a_kind() -> None:
    """No incident expects a finding whose kind does not exist."""
    for corpus, _ in JUDGED:
        for incident in corpus.incidents.values():
            for label in (*incident.must, *incident.late, *incident.may):
                assert label.split("/")[0] in KINDS, (corpus.name, incident.name)


def test_every_kind_is_explained() -> None:
    """Each has severities, worst first, and full sentences about meaning, proof and action."""
    for kind in KINDS.values():
        places = [SEVERITIES.index(severity) for severity in kind.severities]
        assert places == sorted(set(places))
        assert places
        for text in (kind.meaning, kind.proof, kind.action):
            assert text.endswith("."), kind.name
            assert re.match("[A-Z0-9`]", text), kind.name
        assert not kind.verdict.endswith(".")
        assert f"## {kind.name}\n" in page()
    assert set(LASTING) < set(KINDS)
