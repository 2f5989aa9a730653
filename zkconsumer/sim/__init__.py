"""The same core on virtual time: a fake ZooKeeper, simulated members and their histories."""
