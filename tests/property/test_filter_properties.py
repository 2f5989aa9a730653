"""Random filters: matched as sets of positions, they select what a backtracking matcher selects."""

from __future__ import annotations

import os
import random

import pytest
import regex

from zkconsumer.core.common.java_regex import InvalidRegexError, _Translator, compile_java
from zkconsumer.core.common.name_sets import Names
from zkconsumer.core.common.topic_filter import expand
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.errors import ZnodeFormatError

SEED = int(os.environ.get("ZKC_SEED", "1"))
COUNT = int(os.environ.get("ZKC_FILTERS", "600"))
ATOMS = [*"abcA1._-", *"...", "[ab]", "[^a]", r"\d", r"\w", r"\.", "[.]", r"\-", r"\p{Lower}"]
ATOMS += [r"\Qa.b\E", "[a-c&&[^b]]", "^", "$", r"\b", r"\B", r"\z", r"\G", r"\x61", r"\1"]
GROUPS = ["(", "(?:", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?<n1>", "(?>"]
REPEATED = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "??", "{3}?", "*+", "++", "{0}"]
NAMES = ["a", "b", "ab", "aa", "aab", "abab", "A", "aA1", ".", "a.b", "a-b", "_", "a_1", "abcabc"]
NAMES += ["1", "11a", "-", "b.b", "cc", "Aab", "B", "BA"]


def random_regex(rng: random.Random, depth: int) -> str:
    """Return a text that often is a regex."""
    text = ""
    for _ in range(rng.randint(0, 3)):
        kind = rng.random()
        if depth and kind < 0.35:
            part = rng.choice(GROUPS) + random_regex(rng, depth - 1) + ")"
        elif depth and kind < 0.42:
            text += rng.choice(["(?i)", "(?-i)", "(?s)"])
            continue
        else:
            part = rng.choice(ATOMS)
        text += part + (rng.choice(REPEATED) if rng.random() < 0.4 else "")
    if rng.random() < 0.4:
        text += "|" + random_regex(rng, max(0, depth - 1))
    return text


def test_matched_as_sets_or_by_backtracking() -> None:
    """A regex is valid if the ``regex`` library accepts its translation, and it matches the same
    names. Only a regex with too many ways to match is refused."""
    rng = random.Random(SEED)
    names, tried = Names(NAMES), 0
    for _ in range(COUNT):
        text = random_regex(rng, 3)
        try:
            translated = "".join(_Translator(text).translate())
            reference = regex.compile(translated, regex.V1 | regex.ASCII)
        except (InvalidRegexError, regex.error):
            with pytest.raises(InvalidRegexError):
                compile_java(text)
            continue
        try:
            found = compile_java(text).matches(names)
        except InvalidRegexError as error:
            if "ways to match" not in str(error):
                raise
            continue
        try:
            expected = [reference.fullmatch(name, timeout=2.0) is not None for name in NAMES]
        except TimeoutError:
            continue
        assert found == expected, f"{text!r}, {translated!r}, ZKC_SEED={SEED}"
        tried += 1
    assert tried > COUNT / 3


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
