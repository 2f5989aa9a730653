"""Files that zkmigrate reads and writes.

``plan_file`` has plans in JSON Lines, which are read strictly and as a stream. ``offset_csv``
holds offsets in the formats of Kafka's tools and of the JVM consumer. ``whole_file`` creates files
that appear completely or not at all. The journal is in ``apply``.
"""
