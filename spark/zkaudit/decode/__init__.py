"""Decoders for ZooKeeper's files and for ``__consumer_offsets``. Pure: no Spark.

``txnlog`` and ``snapshot`` are the readable decoders, one record at a time::

    batches       whole logs and snapshots as Arrow batches; where logs can be split
    columns       bodies of many transactions at once, with numpy; rare ones go to ``txnlog``
    offsets_topic records of ``__consumer_offsets``

Used in Spark's Python workers and in tests; one reader belongs to one thread.
"""
