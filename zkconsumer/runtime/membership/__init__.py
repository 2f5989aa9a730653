"""A member's loop, and what carries out its commands in ZooKeeper and on the coordinator."""
