"""The audit as a Spark job: ``audit`` runs it once, ``stream`` again and again. Driver's thread.

``inputs`` is what it reads and ``output`` where it writes, ``spark`` makes the session, and
``verify`` replays the logs to compare digests. No other module writes tables or starts Spark.
"""
