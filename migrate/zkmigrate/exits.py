"""The exit status of all commands. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAILED: Final = 1
USAGE: Final = 2
ATTENTION: Final = 3

STATUSES: Final[Mapping[int, tuple[str, str]]] = {
    0: ("Done, or nothing to do. In a dry run: nothing prevents the change.", "nothing"),
    FAILED: (
        "A server did not answer or refused a request, or a group could not be read.",
        "repair what the message or the row names, then run the command again",
    ),
    USAGE: (
        "Wrong options, or a plan, a journal or another file that cannot be used.",
        "read the error line",
    ),
    ATTENTION: (
        "Nothing failed, but a group is refused, is not ready, or needs attention.",
        "follow the advice in its row",
    ),
    129: ("SIGHUP: the terminal was closed.", "run it again; it resumes"),
    130: ("Ctrl-C.", "run it again; it resumes"),
    141: ("The reader of standard output exited.", "nothing"),
    143: ("SIGTERM.", "run it again; it resumes"),
}
"""Meaning of each exit status, and what to do. The reference shows this table."""

HELP: Final = "Exit status: 0 done or nothing to do, 1 failed, 2 wrong usage, 3 needs attention."
"""The last paragraph of the help of each command."""


def exit_status(*, failed: bool = False, attention: bool = False) -> int:
    """Return the exit status. ``failed`` takes precedence."""
    return FAILED if failed else ATTENTION if attention else 0
