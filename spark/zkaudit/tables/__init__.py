"""The tables that an audit writes. ``catalog`` describes all of them. Driver's thread.

``build`` derives tables from the lifetimes, ``journals`` and ``causes`` from the members'
journals, ``brokers`` from the records of ``__consumer_offsets``, ``migrations`` from the modes of
migrating groups.
"""
