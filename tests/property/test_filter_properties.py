"""Random filters: they select what Java selects, for every member."""

from __future__ import annotations

import os
import random

import pytest

from tests.property import java_regexes
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.java_regex import InvalidRegexError, compile_java
from zkconsumer.core.common.name_sets import Names
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.errors import ZnodeFormatError

SEED = int(os.environ.get("ZKC_SEED", "1"))
REFUSED = (
    "more than 1000 ways to match",
    "a look-behind has no maximum length",
    "'&&' needs something after it",
    "a reference to a group that is not complete",
    "a range has no end",
    "look-behind requires fixed-width pattern",
)
"""Why a regex that Java compiles is refused."""


def test_random_regexes_match_what_java_matches() -> None:
    """Each recorded regex is invalid where Java refuses it, and matches the names that Java
    matches. Some are refused for a reason that the documentation names."""
    names = Names(java_regexes.NAMES)
    compared = refused = accepted = 0
    for text, expected in java_regexes.recorded():
        try:
            verdict = "".join("01"[matched] for matched in compile_java(text).matches(names))
        except InvalidRegexError as error:
            if expected != "E" and not any(reason in str(error) for reason in REFUSED):
                pytest.fail(f"{text!r} is refused: {error}")
            refused += expected != "E"
            continue
        if expected == "E":
            accepted += 1
            continue
        assert verdict == expected, text
        compared += 1
    assert compared > 1_000
    assert refused < compared / 10
    assert accepted <= 3  # ranges from quoted text, references in look-behinds


def test_the_verdict_does_not_depend_on_the_order_of_topics() -> None:
    """Members may see the topics in different orders. One refuses a filter exactly if the others
    do."""
    rng = random.Random(SEED)
    kinds = set()
    for _ in range(10):
        parts = rng.choices(["a?", "b?", "[ab]?"], k=rng.randint(20, 1500))
        regex_text = "(" + "".join(parts) + "x)*"
        own = Subscription(Pattern.WHITE_LIST, {regex_text: 1})
        topics = ["".join(rng.choices(["aa", "b", "x"], k=rng.randint(1, 120))) for _ in range(8)]
        verdicts = set()
        for _ in range(2):
            rng.shuffle(topics)
            try:
                verdicts.add(tuple(sorted(expand("/z", own, topics, True))))
            except ZnodeFormatError as error:
                verdicts.add((error.reason,))
                kinds.add("refused")
            else:
                kinds.add("matched")
        assert len(verdicts) == 1, f"{regex_text!r}, ZKC_SEED={SEED}"
    assert kinds == {"refused", "matched"}
