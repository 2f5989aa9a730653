"""zkaudit: who owned what when, from ZooKeeper's own logs, in Spark."""
