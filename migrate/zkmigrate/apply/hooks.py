"""Runs an operator's commands before and after the work on each group.

A hook gets its information from environment variables, see ``docs/how-to/run-unattended.md``. It
runs in its own process session, so that Ctrl-C does not interrupt a hook, but ends zkmigrate
between groups. Any thread; each hook runs in the thread that works on the group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from zkconsumer.admin.printable import printable
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.errors import refused
from zkmigrate.reasons import Reason

_PREFIX: Final = "ZKMIGRATE_"
_SHOWN: Final = 200
"""Number of characters shown of a failed hook's last line."""


@dataclass(frozen=True)
class Hooks:
    """The shell commands to run before and after each group. An empty command is not run.

    Args:
        before: run before a group is claimed; if it fails, the group is refused.
        after: run after the work on a group. Like ``before``, it is only run for groups that need
            work.
        timeout: seconds after which a hook is killed, which counts as a failure.
        facts: the hooks' environment variables, by name without the prefix ``ZKMIGRATE_``.
    """

    before: str = ""
    after: str = ""
    timeout: float = 60.0
    facts: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    @property
    def commands(self) -> dict[str, str]:
        """The shell commands, by the names of their options."""
        given = {"before_group": self.before, "after_group": self.after}
        return {name: command for name, command in given.items() if command}

    def begin(self, group: str, facts: Mapping[str, str]) -> None:
        """Run ``before``. Raises GroupRefusedError if it fails."""
        fault = self._run(self.before, facts)
        if fault:
            raise refused(group, Reason.HOOK_FAILED, f"--before-group {fault}; nothing was changed")

    def end(self, result: Result, facts: Mapping[str, str]) -> Result:
        """Run ``after``. Return the group's outcome, which needs attention if the hook fails."""
        outcome = {
            "OUTCOME": result.outcome.value,
            "OFFSETS": str(result.offsets),
            "WHY": result.why,
        }
        fault = self._run(self.after, {**facts, **outcome})
        if not fault:
            return result
        why = "; ".join(filter(None, (result.why, f"--after-group {fault}")))
        if not result.outcome.good:
            return replace(result, why=why)
        why = f"was {result.outcome.value}, but {why}"
        return replace(result, outcome=Outcome.REFUSED, why=why)

    def _run(self, command: str, facts: Mapping[str, str]) -> str:
        """Run a hook. Return why it failed, or nothing."""
        try:
            return self._fault_of(command, facts) if command else ""
        except OSError as error:  # no memory, or no room in the folder for temporary files
            return f"could not be run: {error.strerror}"

    def _fault_of(self, command: str, facts: Mapping[str, str]) -> str:
        """Run a command. Return why it failed, or nothing. Raises OSError."""
        every = {**self.facts, **facts}
        variables = {_PREFIX + name: value.replace("\0", "") for name, value in every.items()}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
            )
            try:
                status = process.wait(self.timeout)
                if not status:
                    return ""
                fault = f"exited with {status}" if status > 0 else f"was ended by signal {-status}"
            except subprocess.TimeoutExpired:
                fault = f"did not end within {self.timeout:g} s"
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * _SHOWN))
            lines = output.read().decode("utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{fault}: {printable(last[-_SHOWN:])}" if last else fault
