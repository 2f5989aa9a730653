"""zkmigrate: moves a group's offsets between ZooKeeper and the broker's coordinator.

snapshot -> plan (pure) -> plan file -> apply (journalled) -> verify (pure comparison) -> rollback.
"""
