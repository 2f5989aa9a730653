"""Scripts: the steps of a command in ZooKeeper, as generators of single operations.

A script yields one ``ZkOp``, or several as ``Pipelined``, is sent one ``Reply``, and ends by
returning the event that answers its command. Scripts have no state between runs and never wait.
The live driver and the simulator run the same scripts, so both interleave at the same points.
"""
