"""Shared by members of both kinds of group: no IO, no time, no threads."""
