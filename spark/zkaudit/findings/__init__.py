"""The rules: what went wrong, as the tables show it. The driver builds DataFrames.

``rules`` puts all findings together; ``base`` has what the rules share::

    ownership  partitions without an owner, foreign releases, sessions, shares
    offsets    writes of offsets that should not have been
    load       rebalance storms, contention, herds
    journals   overlapping deliveries, views that differ
    migrations groups that move while they run; ``modes`` judges one of them
"""
