"""zkmigrate: moves a group's offsets between ZooKeeper and the broker's coordinator (not built yet)."""
