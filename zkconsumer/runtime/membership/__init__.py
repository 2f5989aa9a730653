"""A member's loop, and what carries out its commands in ZooKeeper and at the coordinator."""
