"""Files that zkmigrate reads and writes.

``plan_file`` holds plans in JSON Lines, read back strictly and as a stream. ``offset_csv`` holds
offsets in the formats of Kafka's tools and of the JVM consumer. ``whole_file`` creates files that
appear whole or not at all. The journal is not here: only ``apply`` reads and writes it.
"""
