"""Simulated processes: the real loop of a member on virtual time."""
