"""Checks for options that exclude each other, or need another option. All commands report the same
errors.

Each function raises ``click.UsageError`` (exit status 2), which names the options as they are
typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def was_typed(parameter: str) -> bool:
    """Whether an option of the current command was given on the command line."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


def at_most_one(options: Iterable[str]) -> None:
    """Raise UsageError if two or more of these options were given."""
    given = list(dict.fromkeys(options))
    if len(given) > 1:
        names = f"{', '.join(given[:-1])} and {given[-1]}"
        raise click.UsageError(f"{names} cannot be used together: use only one of them")


def no_effect(other: str, *parameters: str) -> None:
    """Raise UsageError if one of these parameters was given, because it has no effect with
    ``other``."""
    for option in _typed(parameters):
        raise click.UsageError(f"{option} has no effect with {other}: remove it")


def only_with(other: str, *parameters: str) -> None:
    """Raise UsageError if one of these parameters was given without ``other``, which
    they require."""
    for option in _typed(parameters):
        raise click.UsageError(f"{option} requires {other}")


def _typed(parameters: Iterable[str]) -> Iterable[str]:
    for parameter in click.get_current_context().command.params:
        if parameter.name in parameters and was_typed(parameter.name):
            is_option = isinstance(parameter, click.Option)
            yield parameter.opts[0] if is_option else parameter.human_readable_name.strip("[].")


def flags(parameter: str, default: str | None, helps: Mapping[str, str]) -> Callable[[F], F]:
    """Add flags that exclude each other.

    The command gets ``parameter``: the name of the flag (``json`` for ``--json``), or the default.
    """

    def note(context: click.Context, option: click.Parameter, given: bool) -> None:
        context.params.setdefault(parameter, default)
        if given:
            notes = context.meta.setdefault(f"{__name__}.{parameter}", [])
            notes.append(option.opts[0])
            at_most_one(notes)
            context.params[parameter] = option.name

    def add(command: F) -> F:
        for name, text in reversed(list(helps.items())):
            command = click.option(
                f"--{name}", is_flag=True, expose_value=False, callback=note, help=text
            )(command)
        return command

    return add
