"""Transcripts of simulated groups: input lines, and what each member's machine then gets and does.

A transcript is a text file in this folder. A line that begins with ``>`` has inputs, separated by
``;``, and the lines after it are what happened in the next seconds. What follows from a line that
begins with ``>>`` is not shown. ``test_transcripts.py`` plays each file and
compares. To accept what happens now, rewrite the files and review the change as a diff:

    .venv/bin/python -m tests.sim.transcripts

A member's event has no indent, and the commands that its machine answered with follow, indented.
Timers, brokers' addresses and heartbeats that change nothing are left out. Messages that were
delivered, and broken rules, are at the end of each input.

The group has the real loop, machine and scripts of a member, on simulated servers whose messages
take a millisecond each way. Inputs:

======================================  ========================================================
``group zookeeper|classic|consumer``    the kind of group; for the first also ``scala``
                                        and ``roundrobin``, for the second a strategy
``group live [STRATEGY]``               migratable members; ``legacy…`` is a member in ZooKeeper
                                        alone, ``plain…`` a Kafka consumer with that strategy
``topic NAME PARTITIONS``               create a topic, or give it more partitions
``delete topic NAME``                   delete a topic
``start MEMBER TOPIC[,TOPIC] [N]``      a member with N streams (1) joins; ``/REGEX/`` is a filter
``leave MEMBER``                        the member leaves
``crash MEMBER``                        its process ends
``pause MEMBER SECONDS``                its process is suspended
``cut MEMBER SECONDS``                  it has no connection to the servers
``expire MEMBER``                       its session ends while it is connected
``busy MEMBER SECONDS``                 its application works on one message for that long
``commit MEMBER``                       the application commits
``znode PATH TEXT``                     another program writes a znode (without TEXT: deletes it)
``fail over SECONDS``                   the group's coordinator dies; another one is elected later
``run SECONDS``                         time passes
``operator COMMAND[+...] [SECONDS]``    commands such as ``lock+to-kafka`` of ``zkmigrate``; each
                                        waits for obstacles for that long (30)
``kill operator [SECONDS]``             the tool's process ends after that time
``cut MEMBER SECONDS coordinator``      a migratable member has no connection to the brokers
``offsets``                             show the committed offsets in both stores
======================================  ========================================================
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def files() -> list[Path]:
    """Return all transcripts."""
    return sorted(FOLDER.glob("*.txt"))
