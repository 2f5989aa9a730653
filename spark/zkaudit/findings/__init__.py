"""The findings as a table. The driver builds DataFrames from the tables.

``kinds`` describes each kind. The rules are plain Python. Rules for groups in ZooKeeper run with
their folds (``zkaudit.group.rules``), and ``outside`` runs those for journals and records of the
coordinator (``zkaudit.group.records``). ``rules`` collects all findings, and ``places`` finds
them in the logs.
"""
