"""Fetching: from a claimed partition to chunks of records in the queue of its stream.

``table`` decides, ``worker`` and ``leaders`` do one step at a time, ``threads`` runs the steps::

    DataPlane -> threads.ConsumerFetcherManager -> table.FetchTable: partitions without a leader
    leaders.LeaderFinder: choose -> ask any broker -> take: partitions to the workers of leaders
    worker.FetchWorker:   choose -> ask its broker -> take: chunks to queues, or mark failed

Only ``threads`` starts threads or waits, and only ``broker_io`` uses sockets. The simulator runs
the same table, workers and leader finder on virtual time.
"""
