"""The reference pages of the configuration, from its tables. Used by ``generate.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zkconsumer.config.consumer import RULES, Rule
from zkconsumer.config.coordinator_keys import (
    ALIASES,
    KEYS as COORDINATOR_KEYS,
    PROTOCOLS,
    RULES as COORDINATOR_RULES,
    VALUES,
    ZOOKEEPER_ONLY,
)
from zkconsumer.config.key_table import Row
from zkconsumer.config.keys import KEYS, SECURITY
from zkconsumer.config.security_keys import RULES as SECURITY_RULES

_INTRODUCTION = """\
# Configuration

<!-- Generated: python docs/generate.py -->

A consumer is configured by a mapping or by a Java `.properties` file, with the keys of the JVM's
old consumer and a few of its own, which start with `zkconsumer.`. All faults are reported at once,
each with its key, its value and what to do. `zkconsumer config --check FILE` checks a file.

- Blanks around values are ignored. Integers have 32 bits. Booleans are `true` or `false`.
- An unknown key is a warning that names the nearest known key, and a fault with `--strict`. Keys
  that start with `external` are ignored.
- Times are in milliseconds, sizes in bytes.
- In Python a value is an attribute of `ConsumerConfig`: the key without `zkconsumer.` and with `_`
  for each dot.
- *Since* is given for keys that are newer than Kafka 0.8.

Names and defaults are those of Kafka 1.1.1. Values with which the JVM consumer would fail later are
refused at once: an empty `group.id`, a `consumer.id` that does not fit into a path, integers that
are too small.
"""


_COORDINATIONS = """\
*On the coordinator*: what the key means for a member on [the group
coordinator](config-coordinator.md). Not marked: the same as in ZooKeeper. *Classic*: only with
`group.protocol=classic`.
"""


_SECURITY = """\
The file for `--command-config` contains the same keys. Passwords print as `[hidden]`. See
[How to reach secured servers](../how-to/secure.md).
"""


def config_page() -> str:
    """Return the reference page of a member in ZooKeeper."""
    other = [row for row in KEYS if row.name not in SECURITY]
    secure = [row for row in KEYS if row.name in SECURITY]
    legacy = [row for row in other if not row.name.startswith("zkconsumer.")]
    own = [row for row in other if row.name.startswith("zkconsumer.")]
    parts = [_INTRODUCTION, "## Overview\n", _COORDINATIONS]
    parts += [_overview(KEYS, "On the coordinator", _coordinations())]
    parts += ["## Keys of the legacy consumer\n", *map(_section, legacy)]
    parts += ["## Keys of zkconsumer\n", *map(_section, own)]
    parts += ["## Keys of security\n", _SECURITY, *map(_section, secure)]
    parts += [_checks(RULES + SECURITY_RULES)]
    return "\n".join(parts)


def coordinator_page(note: str) -> str:
    """Return the reference page of a member on the coordinator: the differences from ZooKeeper."""
    before = {row.name: row for row in KEYS}
    mine = [row for row in COORDINATOR_KEYS if row != before.get(row.name)]
    new = [row for row in mine if row.name not in before]
    changed = [row for row in mine if row.name in before]
    aliases = [f"| `{other}` | `{name}` |" for other, name in ALIASES.items()]
    aliases += [
        f"| `{name}={other}` | `{name}={value}` |"
        for name, words in VALUES.items()
        for other, value in words.items()
    ]
    same = sorted(
        row.name
        for row in COORDINATOR_KEYS
        if row == before.get(row.name) and row.name not in ALIASES
    )
    unused = [name for name in same if _unused(before[name])]
    used = [name for name in same if name not in unused]
    return "\n".join(
        [
            "# Configuration on the coordinator\n",
            note,
            "`CoordinatorConsumerConnector` takes the keys of [the legacy consumer](config.md),",
            "those below, and names of the newer consumer. In Python a value is an attribute of",
            "`CoordinatorConfig`.\n",
            "## New keys\n",
            "*Protocol*: the `group.protocol` in which the key has an effect. Not marked: both.\n",
            _overview(new, "Protocol", PROTOCOLS),
            *map(_section, new),
            "## Keys that mean something else\n",
            *map(_section, changed),
            _checks(COORDINATOR_RULES),
            "## Other names\n",
            "| Given | Counts as |",
            "| --- | --- |",
            *aliases,
            "",
            "## Keys as in ZooKeeper\n",
            _links(used),
            "## Keys without effect\n",
            "They are accepted, because they may be in the file of a group in ZooKeeper.\n",
            _links(unused),
        ]
    )


def _links(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](config.md#{_anchor(name)})" for name in names) + ".\n"


def _unused(row: Row) -> bool:
    return row.name in ZOOKEEPER_ONLY or row.status.startswith("accepted, ignored")


def _coordinations() -> dict[str, str]:
    """What keys of members in ZooKeeper mean on the coordinator, where that differs."""
    mine = {row.name: row for row in COORDINATOR_KEYS}
    marks_of = {}
    for row in KEYS:
        other = mine[row.name]
        marks = []
        if row.name in ALIASES:
            name = ALIASES[row.name]
            marks.append(f"counts as [`{name}`](config-coordinator.md#{_anchor(name)})")
        elif _unused(other):
            marks.append("no effect")
        elif other != row:
            marks.append(f"[differs](config-coordinator.md#{_anchor(row.name)})")
        if row.name in PROTOCOLS:
            marks.append(PROTOCOLS[row.name])
        marks_of[row.name] = ", ".join(marks)
    return marks_of


def _overview(keys: Iterable[Row], title: str, marks: Mapping[str, str]) -> str:
    """A table of the keys. The last column, ``title``, has the marks."""
    lines = [
        f"| Key | Default | {title} |",
        "| --- | --- | --- |",
    ]
    for row in keys:
        lines.append(
            f"| [`{row.name}`](#{_anchor(row.name)}) | {_code(row.default_text)} "
            f"| {marks.get(row.name, '')} |"
        )
    return "\n".join(lines) + "\n"


def _checks(rules: Iterable[Rule]) -> str:
    lines = [f"- {'Fault' if rule.fatal else 'Warning'}: {rule.text}.\n" for rule in rules]
    return "## Checks over several keys\n\n" + "".join(lines)


def _section(row: Row) -> str:
    facts = [f"Type: {row.kind}", f"default: {_code(row.default_text)}"]
    if row.check is not None:
        facts.append(f"valid: {row.check.text}")
    facts.append(f"importance: {row.importance}")
    if row.since not in ("zkconsumer", "0.8"):
        facts.append(f"since Kafka {row.since}")
    text = f"### {row.name}\n\n{row.doc}.\n\n{'; '.join(facts)}.\n"
    if row.status != "supported":
        text += f"\nSupport: {row.status}.\n"
    return text


def _code(text: str) -> str:
    return text if text.startswith("(") else f"`{text}`"


def _anchor(name: str) -> str:
    return name.replace(".", "").lower()
