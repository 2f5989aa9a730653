"""The reference pages of the configuration, from its tables. Used by ``generate.py``."""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.config.consumer import RULES
from zkconsumer.config.coordinator_keys import (
    ALIASES,
    KEYS as COORDINATOR_KEYS,
    RULES as COORDINATOR_RULES,
    VALUES,
    ZOOKEEPER_ONLY,
)
from zkconsumer.config.key_table import Row, Rule
from zkconsumer.config.keys import KEYS, SECURITY
from zkconsumer.config.security_keys import RULES as SECURITY_RULES

_INTRODUCTION = """\
# Configuration

<!-- Generated: python docs/generate.py -->

A consumer is configured by a mapping or by a Java `.properties` file, with the keys of the JVM's
old consumer and a few of its own, which start with `zkconsumer.`. All faults are reported at once,
each with its key, its value and what to do. `zkconsumer config --check FILE` checks a file.

- Whitespace around values is ignored. Integers have 32 bits. Booleans are `true` or `false`.
- An unknown key causes a warning that names the most similar key, or with `--strict` an error. Keys
  that start with `external` are ignored.
- Times are in milliseconds, sizes in bytes.
- In Python a value is an attribute of `ConsumerConfig`: the key without `zkconsumer.` and with `_`
  for each dot.
- [Configuration on the coordinator](config-coordinator.md) lists the keys that differ or have no
  effect there.
- Names and defaults are those of Kafka 1.1.1. Values that would make the JVM consumer fail
  later are refused at the start. A few keys of the JVM consumer are accepted and ignored.
- `zkconsumer config KEY` also shows which Kafka release introduced a key.
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
    parts = [_INTRODUCTION, "## Keys of the legacy consumer\n", *map(_section, legacy)]
    parts += ["## Keys of zkconsumer\n", *map(_section, own)]
    parts += ["## Keys of security\n", _SECURITY, *map(_section, secure)]
    parts += [_checks(RULES + SECURITY_RULES)]
    return "\n".join(parts)


def coordinator_page(note: str) -> str:
    """Return the reference page of a member on the coordinator: the differences from ZooKeeper."""
    before = {row.name: row for row in KEYS}
    mine = [row for row in COORDINATOR_KEYS if row != before.get(row.name)]
    new = [row for row in mine if row.name not in before]
    changed = [row for row in mine if row.name in before and not _unused(row)]
    aliases = [f"| `{other}` | `{name}` |" for other, name in ALIASES.items()]
    aliases += [
        f"| `{name}={other}` | `{name}={value}` |"
        for name, words in VALUES.items()
        for other, value in words.items()
    ]
    others = (row for row in COORDINATOR_KEYS if row.name in before and row not in changed)
    unused = sorted(row.name for row in others if _unused(row))
    return "\n".join(
        [
            "# Configuration on the coordinator\n",
            note,
            "`CoordinatorConsumerConnector` takes the keys of [a member in ZooKeeper](config.md),",
            "with the differences below. In Python a value is an attribute of `CoordinatorConfig`.",
            "",
            "## New keys\n",
            *map(_section, new),
            "## Keys with another meaning\n",
            *map(_section, changed),
            _checks(COORDINATOR_RULES),
            "## Other names\n",
            "| Value | Treated as |",
            "| --- | --- |",
            *aliases,
            "",
            "## Keys without effect\n",
            "They are accepted, because they may be in the file of a group in ZooKeeper.\n",
            _links(unused),
        ]
    )


def _links(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](config.md#{_anchor(name)})" for name in names) + ".\n"


def _unused(row: Row) -> bool:
    return row.name in ZOOKEEPER_ONLY or row.ignored is not None


def _checks(rules: Iterable[Rule]) -> str:
    lines = [f"- {'Fault' if rule.fatal else 'Warning'}: {rule.text}.\n" for rule in rules]
    return "## Checks over several keys\n\n" + "".join(lines)


def _section(row: Row) -> str:
    if row.ignored is not None:
        first = next(one.name for one in KEYS if one.ignored == row.ignored)
        why = f": {row.ignored}" if first == row.name else f", like [`{first}`](#{_anchor(first)})"
        return f"### {row.name}\n\n{row.doc}. Accepted and ignored{why}.\n"
    valid = "" if row.check is None else f": {row.check.text}"
    facts = [f"{row.kind.capitalize()}{valid}", _default(row.default_text)]
    return f"### {row.name}\n\n{row.doc}.\n\n{'; '.join(facts)}.\n"


def _default(text: str) -> str:
    words = {"(required)": "required", "(none)": "no default", "(empty)": "empty by default"}
    return words.get(text, f"default `{text.removeprefix('= ')}`")


def _anchor(name: str) -> str:
    return name.replace(".", "").lower()
