"""The decisions file: an operator's decisions about groups and topics, as TOML. Pure.

Each decision is a table ``[[rule]]``. ``group`` and ``topic`` are names or globs, ``*`` if they
are missing. The other keys are the options of ``plan`` with ``_`` instead of ``-``. For each key,
the first rule that has it and matches group and topic applies. ``template`` creates a file with
all open decisions. A plan that reads offsets when it is applied has the same decisions as JSON.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from zkconsumer.admin.printable import printable
from zkmigrate.errors import PlanFileError
from zkmigrate.plan.options import CHOICES, DECIDED, Options, Rule, Skip
from zkmigrate.plan.values import GroupPlan, Problem, Verdict
from zkmigrate.reasons import Reason

_ASKED: Final[Mapping[Reason, str]] = {
    Reason.CONFLICT: "on_conflict",
    Reason.WOULD_LOWER: "on_conflict",
    Reason.OUT_OF_RANGE: "out_of_range",
    Reason.MISPLACED: "misplaced",
    Reason.TOPIC_MISSING: "missing_topics",
    Reason.PARTITION_MISSING: "missing_topics",
    Reason.RECREATED: "recreated_topics",
    Reason.UNPROVEN: "unproven_topics",
    Reason.NO_OFFSET: "without_offset",
    Reason.EXPIRED: "expired_offsets",
    Reason.OTHER_ZNODES: "other_znodes",
}
_HEAD: Final = """\
# Decisions for zkmigrate plan --decisions FILE.
# For each key, the first rule that matches the group and topic applies: put exceptions first.
# group and topic may be globs. Add topic = "NAME" to decide about one topic only, and skip = true
# to leave offsets as they are in both stores, with partition = N those of one partition.
# ignore = "REASON" leaves whole groups as they are; zkmigrate gate lets them pass.
"""


def parse(name: str, data: bytes) -> tuple[Rule, ...]:
    """Return the rules in a TOML file of decisions. Raises PlanFileError, which names file, rule
    and key."""
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanFileError(f"{name} is not TOML: {error}") from None
    rules = document.pop("rule", [])
    if document or not isinstance(rules, list):
        odd = next(iter(document), "rule")
        raise PlanFileError(f"{name}: {odd!a} is not a [[rule]] table: write only [[rule]] tables")
    return tuple(_rule(f"{name}: rule {number}", one) for number, one in enumerate(rules, 1))


def _rule(where: str, table: object) -> Rule:
    if not isinstance(table, dict):
        raise PlanFileError(f"{where} is not a table: begin each rule with [[rule]]")
    values: dict[str, Any] = {}
    for key, value in table.items():
        values[key] = _value(where, key, value)
    if not any(key in values for key in (*DECIDED, "skip", "ignore")):
        known = ", ".join((*DECIDED, "skip"))
        raise PlanFileError(f"{where} decides nothing: add ignore, or one of {known}")
    if "ignore" in values and values.keys() - {"group", "ignore"}:
        raise PlanFileError(f"{where}: ignore applies to whole groups: use it only with group")
    if "partition" in values and any(key in values for key in DECIDED):
        raise PlanFileError(f"{where}: partition requires skip")
    for key in ("max_idle_days", "other_znodes"):
        if key in values and values.get("topic", "*") != "*":
            raise PlanFileError(f"{where}: {key} applies to whole groups: remove topic")
    decided = {key: values.pop(key) for key in DECIDED if key in values}
    return Rule(**values, decided=decided)


def _value(where: str, key: str, value: object) -> object:
    if key in CHOICES:
        if value in CHOICES[key]:
            return value
        choices = ", ".join(CHOICES[key])
        raise PlanFileError(f"{where}: {key} = {value!a} is not one of {choices}")
    kinds = {"group": str, "topic": str, "partition": int, "max_idle_days": int, "skip": bool,
             "ignore": str}  # fmt: skip
    if key not in kinds:
        known = ", ".join((*kinds, *CHOICES))
        raise PlanFileError(f"{where}: {key!a} is not one of {known}")
    if type(value) is not kinds[key] or value == "" or (kinds[key] is int and value < 0):  # type: ignore[operator]
        wanted = {str: "a string that is not empty", int: "an integer of 0 or more"}
        must = wanted.get(kinds[key], "true or false")
        raise PlanFileError(f"{where}: {key} = {value!a} is not valid: it must be {must}")
    return value


def to_json(options: Options) -> dict[str, Any]:
    """Return an operator's decisions as an object for JSON, which ``from_json`` reads."""
    document: dict[str, Any] = {name: getattr(options, name) for name in DECIDED}
    document["skips"] = [list(skip) for skip in options.skips]
    document["rules"] = [
        {
            name: value
            for name, value in {**asdict(rule), **rule.decided}.items()
            if name != "decided" and value is not None and value is not False and value != ""
        }
        for rule in options.rules
    ]
    return document


def from_json(where: str, document: object) -> Options:
    """Return the decisions in an object from ``to_json``. Raises PlanFileError."""
    try:
        if not isinstance(document, dict):
            raise TypeError
        odd = sorted(document.keys() - {*DECIDED, "skips", "rules"})
        if odd:
            raise PlanFileError(
                f"{where}: {odd[0]!a} is not a decision that this zkmigrate knows: use the version "
                "that made the plan, or make a new plan"
            )
        default = to_json(Options())  # plans of older versions have fewer decisions
        values = {name: _value(where, name, document.get(name, default[name])) for name in DECIDED}
        skips = tuple(Skip(str(g), str(t), str(p)) for g, t, p in document["skips"])
        rules = tuple(_rule(where, one) for one in document["rules"])
    except (KeyError, TypeError, ValueError):
        raise PlanFileError(f"{where}: the decisions are damaged: make the plan again") from None
    return Options(**values, skips=skips, rules=rules)  # type: ignore[arg-type]


def template(plans: Iterable[GroupPlan]) -> Iterator[str]:
    """Yield the text of a file of decisions, with a rule to fill in for each group that needs
    one."""
    yield _HEAD
    for plan in plans:
        if plan.verdict is Verdict.DECIDE:
            skips = [one for one in plan.problems if _is_skipped(one)]
            asked = [one for one in plan.problems if one not in skips]
            if asked:
                lines = dict.fromkeys(line for one in asked for line in _question(one))
                keys = {line.partition(" ")[0] for line in lines if not line.startswith("#")}
                if not keys & set(DECIDED):
                    lines["skip = false"] = None
                yield _table(plan.group, *lines)
            for one in skips:
                for skip in one.skips:
                    place = skip.removeprefix(f"{plan.group}:")
                    about = replace(one, names=tuple(_names_of(one, place)))
                    yield _table(plan.group, *_place(place), *_question(about))


def _table(group: str, *lines: str) -> str:
    return "\n".join(["\n[[rule]]", f"group = {json.dumps(group)}", *lines, ""])


def _is_skipped(problem: Problem) -> bool:
    """Whether leaving single offsets out is the only possible decision."""
    return problem.kind not in _ASKED and bool(problem.skips)


def _names_of(problem: Problem, place: str) -> Iterator[str]:
    """Yield the problem's partitions as ``TOPIC`` or ``TOPIC:PARTITION``, each with its fault."""
    topic, _, wanted = place.partition(":")
    for name in problem.names:
        number = re.match(r"([0-9]+)(?![\w.-])", name.removeprefix(f"{topic}-"))
        if name.startswith(f"{topic}-") and number and wanted in ("", number[0]):
            yield name


def _place(place: str) -> Iterator[str]:
    """Yield the keys for ``TOPIC`` or ``TOPIC:PARTITION``."""
    topic, _, partition = place.partition(":")
    yield f"topic = {json.dumps(topic)}"
    if partition:
        yield f"partition = {partition}"


def _question(problem: Problem) -> Iterator[str]:
    yield f"# {printable(f'{problem.kind.value}: {problem.what}')}"
    key = _ASKED.get(problem.kind)
    if key is not None:
        choices = CHOICES[key]
        yield f'{key} = "{choices[0]}"  # or {", ".join(choices[1:])}'
    elif problem.kind is Reason.IDLE:
        yield f"max_idle_days = {Options().max_idle_days}  # {printable(problem.advice)}"
    elif problem.skips:
        yield f"# {printable(problem.advice.removesuffix(' with'))}:"
        yield "skip = false"
    else:
        yield f"# {printable(problem.fix)}"
