"""A command whose subcommands are imported when they are used. Importing all of them would take
longer than most subcommands run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from zkconsumer.console.run import discard


class LazyGroup(click.Group):
    """A group that also has the subcommands in ``lazy``: name to ``module:attribute``.

    Subcommands whose module is not installed are left out. ``sections``: how the help groups the
    subcommands, as heading to names.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, str],
        sections: Mapping[str, Sequence[str]] | None = None,
        **keys: Any,
    ) -> None:
        super().__init__(*args, **keys)
        self._lazy = lazy
        self._sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands. Those in ``lazy`` are last, in the order of
        ``lazy``."""
        return [*super().list_commands(ctx), *filter(self._is_there, self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, importing it if necessary."""
        if not self._is_there(cmd_name):
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands with their summaries, without importing them."""
        there = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, there))
        for heading, names in (self._sections or {"Commands": there}).items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name, self._described(name).get_short_help_str(width))
                        for name in names
                        if name in there
                    ]
                )

    def _described(self, name: str) -> click.Command:
        """Return a subcommand, or a stand-in that has its help."""
        if name not in self._lazy:
            return self.commands[name]
        module, _, attribute = self._lazy[name].partition(":")
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.parse(Path(spec.origin).read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == attribute:
                return click.Command(name, help=ast.get_docstring(node))
        raise AssertionError(f"module {module} has no {attribute}")

    def make_context(self, *args: Any, **keys: Any) -> click.Context:
        """Parse the arguments, or print help or the version."""
        with _broken_pipe():
            return super().make_context(*args, **keys)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand."""
        with _broken_pipe():
            return super().invoke(ctx)

    def _is_there(self, name: str) -> bool:
        if name not in self._lazy:
            return False
        try:
            return find_spec(self._lazy[name].partition(":")[0]) is not None
        except ModuleNotFoundError:  # its package is not installed
            return False


@contextmanager
def _broken_pipe() -> Iterator[None]:
    """End quietly if the reader of stdout has exited, before click changes the status to 1."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(discard()) from None
