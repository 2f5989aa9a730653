"""Reads both stores.

``sessions.Stores`` holds the sessions with ZooKeeper and the brokers, for one thread. With it::

    group_states.read_states    everything that a plan needs of many groups -> GroupState
    group_states.read_offsets   the offsets of planned groups in both stores -> GroupState
    logs.Logs                   which topics exist, since when, and what their logs hold
    connections                 to the leaders of partitions, or to any broker
    cluster                     which cluster this is
    offset_znodes               a group's offset znodes, as scripts
    migration_marker            ``/consumers/GROUP/migration``, which records a move

A group that cannot be read results in a ``Problem`` for that group; the other groups are read.
Only ``apply`` writes.
"""
