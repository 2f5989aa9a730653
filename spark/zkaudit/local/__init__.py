"""Answers straight from the servers' logs, in one process, without Java and Spark.

::

    log        what happened in a group, in words
    who        who owned a partition at some time
    history    the committed transactions of one group, in order
"""
