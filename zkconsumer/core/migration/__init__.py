"""The decisions of a member while its group moves between ZooKeeper and the coordinator. Pure."""
