"""Spark data sources over logs, snapshots, journals and ``__consumer_offsets``.

``zookeeper``, ``journal`` and ``offsets`` are the sources. Spark plans them in a Python worker of
the driver (``options``, ``files``) and reads them in the executors' Python workers (``rows``).
zkaudit must therefore be installed on the driver and on the executors.
"""
