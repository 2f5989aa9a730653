"""Instructions for mypyc about the classes that it compiles. They have no effect at run time.

This is a separate module because compiled code cannot contain the branch that only Python uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_):
        """Replacement for the function of mypy-extensions, so that this package is not needed."""
        return lambda cls: cls
