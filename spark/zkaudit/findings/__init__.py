"""The findings that need several groups or sources. The driver builds DataFrames from the tables.

``rules`` puts all findings together, ``kinds`` describes each kind, and ``base`` has the code that
the rules share::

    offsets     offsets that were written by the wrong session or moved the wrong way
    load        herds
    journals    overlapping deliveries, views that differ
    coordinator groups on the coordinator

The rules of one group in ZooKeeper are plain Python and run with its fold: ``zkaudit.group.rules``.
"""
