"""Rewrite all transcripts with what happens now."""

import sys

from tests.sim.transcripts import files
from tests.sim.transcripts.engine import TranscriptError, play

for file in files():
    before = file.read_text(encoding="utf-8")
    try:
        now = play(before)
    except TranscriptError as error:
        sys.exit(f"{file.name}: {error}")
    if now != before:
        file.write_text(now, encoding="utf-8")
        sys.stdout.write(f"rewritten: {file.name}\n")
