"""``zkconsumer diagram``: draws a member's journal as a Mermaid sequence diagram."""

from __future__ import annotations

from pathlib import Path

import click

from zkconsumer.errors import ConfigError
from zkconsumer.journal.json_lines import read_journal
from zkconsumer.journal.sequence import members_of, sequence


@click.command()
@click.argument("journal", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--member", help="Consumer id of the member. By default, the first member in the journal."
)
def diagram(journal: Path, member: str | None) -> None:
    """Draw what a member did as a Mermaid sequence diagram.

    It shows the member's requests and the servers' answers, step by step. Members write a journal
    if the key `zkconsumer.journal.dir` is set, and simulations if --journal is given.
    """
    try:
        entries = list(read_journal(journal))
    except OSError as error:
        raise ConfigError([f"{journal}: {error.strerror}"]) from None
    members = members_of(entries)
    if member is not None and member not in members:
        raise ConfigError([f"--member {member}: the journal has {', '.join(members)}"])
    if not members:
        raise ConfigError([f"{journal}: the journal has no member"])
    click.echo(sequence(entries, member or members[0]), nl=False)
