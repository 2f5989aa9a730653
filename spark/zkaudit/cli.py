"""The command ``zkaudit``. It prints errors of Spark as one line.

Its libraries are installed with extras; this module works without them.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from typing import Final

_ALONE: Final = ("findings", "log", "show", "who")
"""Commands that do not need Spark."""
_LIBRARIES: Final = ("click", "rich", "pyspark", "pyarrow", "numpy")
_SEVERAL = ("--zookeeper-logs", "--journals", "--server-logs")
"""Options that take several values, up to the next option."""

_FULL: Final = "No space left on device"
"""What Java reports on every Unix."""
_WRITTEN: Final = re.compile(r"writing rows to (?:file:)?(\S+?)\.(?:\s|$)")
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]*)"')


def main() -> None:
    """Run ``zkaudit`` with the arguments of this process and exit with its status."""
    try:
        if {*_ALONE}.intersection(sys.argv[1:2]):
            _load_arrow()
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are loaded
        status = 130
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _LIBRARIES:
            raise
        extra = "logs" if {*_ALONE}.intersection(sys.argv[1:2]) else "audit"
        sys.stderr.write(f"error: zkaudit needs {name}: in a clone run pip install '.[{extra}]'\n")
        status = 1
    sys.exit(status)


class _NoPandas:
    """A finder of modules that hides pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _load_arrow() -> None:
    """Load pyarrow without pandas, which it would import at its first conversion. That is slow,
    and commands without Spark do not use pandas."""
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa

        pa.array([0])
    except ImportError:
        pass
    finally:
        sys.meta_path.remove(_NoPandas)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status: 3 if there is a finding of severity
    ``--fail-on`` or worse, otherwise that of ``exit_status``."""
    from zkaudit.commands.root import cli
    from zkaudit.text import printable
    from zkconsumer.console.run import exit_status

    return exit_status(
        lambda: cli.main(
            args=one_value_each(arguments), prog_name="zkaudit", standalone_mode=False
        ),
        interrupted=_interrupted,
        reason=_line,
        escape=printable,
    )


def _interrupted() -> int:
    import click

    click.echo("interrupted", err=True)
    return 130


def one_value_each(arguments: Sequence[str]) -> list[str]:
    """Write each option that takes directories once for each directory. Return the new arguments.

    So ``--zookeeper-logs zk1 zk2`` and ``--zookeeper-logs logs/*`` work.
    """
    expanded: list[str] = []
    option = None
    for argument in arguments:
        if argument.startswith("-"):
            option = argument if argument in _SEVERAL else None
            expanded.append(argument)
            continue
        if option is not None and expanded[-1] != option:
            expanded.append(option)
        expanded.append(argument)
    return expanded


def _line(error: Exception) -> str | None:
    """Return the line for an error of the operating system or of Spark."""
    from zkaudit.errors import no_file

    if isinstance(error, OSError):
        return no_file(error.errno, error.strerror or str(error), error.filename)
    if sys.modules.get("pyspark") is None:
        return None
    from zkaudit.job.spark import reason_of, spark_errors

    if not isinstance(error, spark_errors()):
        return None
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"  # only the stack has the cause
    if _FULL in text:
        place = _WRITTEN.search(text)
        return no_file(errno.ENOSPC, _FULL, place[1] if place else "--out")
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark cannot start Java: install Java 17 or later, or set JAVA_HOME"
    if program := _NO_PROGRAM.search(text):
        return (
            f"PYSPARK_PYTHON={program[1]}: Spark cannot run it: the same path must work on the "
            "executors and, to plan the audit, in the driver's current directory"
        )
    return (
        "Spark failed and --out may be incomplete: fix the cause, then run again: "
        f"{reason_of(error)}"
    )


if __name__ == "__main__":
    main()
