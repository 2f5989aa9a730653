"""The study of the herd effect: the costs of a membership change, summed from a run or a journal.

``parameters`` describes a run. ``wire`` has the sizes of ZooKeeper requests, ``group_wire`` those
of requests to brokers. ``recorders`` adds the sizes to journals, ``tally`` sums them, and
``measures`` computes the figures.
"""
