"""The study of the herd effect: what a change of membership costs, summed from a run or a journal.

``parameters`` are those of a run. ``wire`` has the sizes of ZooKeeper requests, ``group_wire``
those of requests to brokers. ``recorders`` adds them to journals, ``tally`` sums them up, and
``measures`` has the figures.
"""
