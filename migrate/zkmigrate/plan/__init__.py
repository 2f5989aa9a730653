"""Plans a move. Pure: a ``GroupState`` and ``Options`` in, a ``GroupPlan`` out.

``group.plan_group`` looks at one group at a time::

    members               registered members, owners, members at the coordinator   -> problems
    left_out.LeftOut      what --skip and --missing-topics leave out               -> stays behind
    partition             which offset the target is to hold of each partition     -> entries
    findings.Findings     problems of partitions, one for each kind                -> problems
    what was moved before, idle groups, notes

There is always a plan. With a problem its verdict is ``needs a decision`` (an option settles it) or
``refused`` (something outside has to change first), and ``apply`` leaves the group alone. A group
that an earlier move settled is ``moved``: there is nothing to write.

``options`` has the operator's decisions, and ``values`` the parts of a plan.
"""
