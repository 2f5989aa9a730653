"""Core and data plane on virtual time: fake ZooKeeper and brokers, members, their histories."""
