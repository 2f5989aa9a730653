"""The audit as a Spark job: ``audit`` runs it once, ``stream`` repeatedly. Driver's thread.

``inputs`` reads, ``output`` writes, ``spark`` starts the session, and ``verify`` replays the logs
to compare digests. No other package writes tables or starts Spark.
"""
