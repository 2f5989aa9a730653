"""Plants a bug in a function of the product: other text in its source, for one test."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest


def rewrite(patch: pytest.MonkeyPatch, function: Callable[..., Any], *texts: str) -> None:
    """Let ``function`` run as if some text in its source were another.

    ``texts``: a text that occurs once in the function, and what replaces it; or several such pairs.
    The function stays the same object, so tables and subclasses that refer to it run the new code.
    """
    path = sys.modules[function.__module__].__file__
    assert path is not None
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    own, first = inspect.getsourcelines(function)
    text = "".join(own)
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert text.count(old) == 1, f"{function.__qualname__} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    lines[first - 1 : first - 1 + len(own)] = [text]
    code = compile("".join(lines), path, "exec", dont_inherit=True)
    for name in function.__qualname__.split("."):
        (code, *_) = (
            part
            for part in code.co_consts
            if isinstance(part, CodeType)
            and part.co_name == name
            and part.co_firstlineno <= function.__code__.co_firstlineno
        )
    patch.setattr(function, "__code__", code)
