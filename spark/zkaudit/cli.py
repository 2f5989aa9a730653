"""The command ``zkaudit``: the one place that maps errors to a message and an exit status.

Its libraries are installed with extras; this module works without them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

_ALONE: Final = ("findings", "log", "show", "who")
"""Commands that need no Spark."""
_LIBRARIES: Final = ("click", "rich", "pyspark", "pyarrow", "numpy")
_SEVERAL = ("--zookeeper-logs", "--journals", "--server-logs")
"""Options that take several values, up to the next option."""

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
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _load_arrow() -> None:
    """Load pyarrow without pandas, which it looks for at its first conversion. That takes 0.2 s,
    and the commands that need no Spark do not use pandas."""
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa

        pa.array([0])
    except ImportError:
        pass
    finally:
        sys.meta_path.remove(_NoPandas)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status.

    The project's own errors print one line on stderr and set the status to their ``exit_code``.
    The status is 2 for a usage error, 3 for findings as severe as ``--fail-on``, 130 for Ctrl-C.
    """
    import click

    from zkaudit.commands.root import cli
    from zkaudit.text import printable
    from zkconsumer.console import stdout
    from zkconsumer.errors import ZkConsumerError

    try:
        stdout.check_open()
        status = cli.main(
            args=one_value_each(arguments), prog_name="zkaudit", standalone_mode=False
        )
        sys.stdout.flush()
    except ZkConsumerError as error:
        click.echo(f"error: {printable(str(error))}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        return stdout.discard()
    except _foreign() as error:
        if isinstance(error, OSError) and stdout.reports_full(error):
            return ZkConsumerError.exit_code
        click.echo(f"error: {printable(_line(error))}", err=True)
        return 1
    return status if isinstance(status, int) else 0


def one_value_each(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each option that takes directories repeated for each directory.

    This makes ``--zookeeper-logs zk1 zk2`` and ``--zookeeper-logs logs/*`` work.
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


def _foreign() -> tuple[type[Exception], ...]:
    """Errors of the operating system, and of Spark if it was loaded."""
    if sys.modules.get("pyspark") is None:
        return (OSError,)
    from zkaudit.job.spark import spark_errors

    return (OSError, *spark_errors())


def _line(error: Exception) -> str:
    from zkaudit.errors import no_file

    if isinstance(error, OSError):
        return no_file(error.errno, error.strerror or str(error), error.filename)
    from zkaudit.job.spark import reason_of

    text = str(error)
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
