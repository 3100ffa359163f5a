"""Finds reward hacking in trajectories: detectors, contrast, a judge, a queue for a person.

    trajectory.py   what the monitor reads, from whatever wrote it        finding.py   what it says, with evidence by step

Not here: the grader (grade/), what training does with a flag (train.py).
"""
