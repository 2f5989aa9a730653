"""Random runs: complete members, their servers, the faults of a seed, and the judges.

``tests.sim.runs.run.run`` plays one; ``python -m tests.sim`` replays it. The parts that
``zkconsumer simulate`` needs as well are in ``zkconsumer.sim``.
"""
