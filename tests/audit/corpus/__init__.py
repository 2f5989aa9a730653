"""Labelled incidents: what happened, and what an audit must and must not find.

``python -m tests.audit.corpus.play`` plays the incidents on a real server and stores its log in
``recorded``. ``python -m tests.audit.corpus.judge`` audits the log and prints precision and recall.
"""
