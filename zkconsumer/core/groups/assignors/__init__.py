"""Strategies with which the leader of a classic group assigns partitions."""
