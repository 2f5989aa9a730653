"""Labelled incidents: what happened, and what an audit must and must not find.

``incidents`` was written with the rules, ``held_out`` apart from them. ``play`` records a corpus on
a real server, as a log in ``recorded``. ``python -m tests.audit.corpus.judge`` audits the logs and
prints precision and recall; with ``--play`` it records them first.
"""
