"""The findings as a table. The driver builds DataFrames from the tables.

``kinds`` describes each kind. The rules are plain Python: those of a group in ZooKeeper run with
its fold (``zkaudit.group.rules``), and ``outside`` runs those about journals and records of the
coordinator (``zkaudit.group.records``). ``rules`` puts all findings together, and ``places``
finds them in the logs.
"""
