"""zkmigrate: moves the committed offsets of consumer groups between ZooKeeper and Kafka.

A move consists of files and steps. An operator can inspect the result of each step::

    zkmigrate plan       stores -> GroupState -> plan_group -> a row for each group, and a plan
                         file: each partition with from, to and reason
    zkmigrate apply      plan file -> a Change for each group -> both stores; a journal next to it
    zkmigrate status     plan file + both stores -> differences
    zkmigrate undo       record in ZooKeeper -> the Change that undoes it -> both stores
    zkmigrate report     plan file + journal -> the result of each group, as HTML and CSV

The packages, each of which imports only those below it:

``commands``
    One module for each verb: options, progress, rows. The only place that prints.
``report``
    The report on a move, as an HTML page and JSON.
``elsewhere``
    Carries out a plan for another cluster.
``apply``, ``verify``
    ``apply`` changes the stores, several groups at a time; ``verify`` compares them with a plan.
``stores``
    Sessions with ZooKeeper and the brokers, and their data of a group: its state, the logs, the
    migration marker.
``formats``
    Files: plans, offsets of other tools, configurations.
``plan``
    Plans a move from ``GroupState`` and the operator's options. Pure.
``model``, ``text``, ``errors``
    The content of both stores, as values; how it appears in messages; the errors.

Offsets are always those to read next. A group is changed only after all of its partitions have been
claimed, as a member would do it. Everything is read back; see ``apply``.
"""
