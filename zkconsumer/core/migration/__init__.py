"""What a member does while its group moves between ZooKeeper and the coordinator. Pure."""
