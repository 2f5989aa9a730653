"""Carries out plans, and undoes them.

``migrator.Migrator`` hands a plan's groups to threads. Each has a ``steps.Steps``, which takes one
group after the other through the same steps. The journal has a record on disk before each of them::

    checks.Checks      both stores are as planned, the logs hold the offsets, there is no member
    claim              ownership: register, claim every partition as a member would
    checks.Checks      again, now that no other member can start
    write              commit to Kafka, or write the znodes; read everything back
    mark               write the migration marker, in a multi that checks that no offset znode has
                       changed; release the claims
    done               the source store is read once more

``change.Change`` is what is to be done with one group: ``forward`` makes it from the plan, ``back``
from the journal. A killed run is repeated from the start of its group: each step accepts what an
earlier run did, and nothing else. ``outcome`` says what became of each group.
"""
