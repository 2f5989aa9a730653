"""The audit as a Spark job: ``audit`` runs it once, ``stream`` repeatedly. Driver's thread.

``inputs`` reads, ``output`` writes, and ``spark`` starts the session. No other package writes
tables or starts Spark.
"""
