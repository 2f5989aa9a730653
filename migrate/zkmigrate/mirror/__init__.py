"""Keeps both stores of groups in step, until an operator completes the move or ends it.

``plan.mirror`` decides what is copied, ``stores.mirror_state`` has what was agreed on, and
``mirroring`` carries it out: passes over all groups, and the change of the store that leads.
"""
