"""Kafka messages for which kafka-python has no schema, in the format of Kafka's schemas."""
