"""How the leader of a classic group assigns partitions."""
