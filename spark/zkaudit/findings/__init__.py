"""The rules: they derive findings from the tables. The driver builds DataFrames.

``rules`` puts all findings together, ``kinds`` describes each kind, and ``base`` has the code that
the rules share::

    ownership  partitions without an owner, foreign releases, sessions, shares
    offsets    offsets that were written by the wrong session or moved the wrong way
    load       rebalance storms, contention, herds
    journals   overlapping deliveries, views that differ
    migrations groups that migrate while they run; ``modes`` checks one group
"""
