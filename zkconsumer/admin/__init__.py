"""Tools for groups: list, describe, verify, delete, export and import offsets; topics.

Scripts read snapshots from ZooKeeper, and pure functions turn them into rows and findings.
``zkconsumer.admin.tools`` runs both with a real ZooKeeper and real brokers.
"""
