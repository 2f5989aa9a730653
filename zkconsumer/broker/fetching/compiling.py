"""Instructions for mypyc on the classes that it compiles. Runs on no thread; does nothing at run
time.

It is a separate module because compiled code cannot contain the branch used only in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_):
        """Replaces the function of mypy-extensions, which the library does not need."""
        return lambda cls: cls
