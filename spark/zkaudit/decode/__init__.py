"""What the bytes of ZooKeeper's files and of ``__consumer_offsets`` mean. Pure: no Spark.

``txnlog`` and ``snapshot`` are the readable decoders, one record at a time::

    batches       whole logs and snapshots as Arrow batches; where logs can be cut
    columns       bodies of many transactions at once, with numpy; rare ones go to ``txnlog``
    digest        the digest of the whole tree, computed again from a log
    offsets_topic records of ``__consumer_offsets``

Used in Spark's Python workers and in tests; one reader belongs to one thread.
"""
