"""Commands that show what a member did: its trace, its journal, a replay."""
