"""Keeps both stores of groups in step, until an operator completes the move or ends the mirror.

``plan.mirror`` decides which offsets are copied, ``stores.mirror_state`` stores the agreed state,
and ``mirroring`` carries it out: passes over all groups, and changes of the leading store.
"""
