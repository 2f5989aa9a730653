"""Carries out plans, and rolls them back.

``migrator.Migrator`` hands a plan's groups to threads. Each thread has a ``steps.Steps``, which
takes one group at a time through the same steps. Before each step, the journal has a record of it
on disk::

    checks.Checks      both stores are as planned, the logs hold the offsets, there is no member
    claim              ownership: register, claim every partition as a member would
    checks.Checks      again, now that no other member can start
    write              commit to Kafka, or write the znodes; read everything back
    mark               write the migration marker, in a multi that checks that no offset znode has
                       changed; release the claims
    done               the source store is read once more

``change.Change`` describes the work on one group: ``forward`` makes it from the plan, ``back``
from the journal. A run that was killed is repeated from the start of its group: each step accepts
the result of an earlier run, but no other change. ``outcome`` describes the result of each group.
"""
