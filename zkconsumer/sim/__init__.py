"""Core and data plane on virtual time: simulated ZooKeeper, brokers and members, and their
histories."""
