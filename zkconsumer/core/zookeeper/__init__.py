"""A member of a legacy group, whose state is in ZooKeeper: its machine and its scripts."""
