"""Kafka messages that kafka-python has no schema of, in the format of Kafka's own schemas."""
