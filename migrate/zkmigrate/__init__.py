"""zkmigrate: moves offsets between ZooKeeper and the broker's coordinator (not built yet)."""
