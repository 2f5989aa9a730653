"""zkconsumer: run, study, migrate and audit Kafka consumer groups that live in ZooKeeper."""
