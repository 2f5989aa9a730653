"""Membership of a group on the broker's coordinator: the second pure machine, data, codecs."""
