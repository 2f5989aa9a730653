"""Tools for groups: list, describe, verify, delete, export and import offsets; topics.

Scripts read ZooKeeper's content into snapshots; pure functions turn snapshots into rows and
findings; ``zkconsumer.admin.tools`` puts both together with a real ZooKeeper and real brokers.
"""
