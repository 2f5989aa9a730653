"""Topics of a local cluster, through ZooKeeper or through its brokers."""
