"""Finds reward hacking in trajectories: detectors, contrast, a judge, a queue for a person.

    trajectory.py   what the monitor reads, from whatever wrote it        finding.py      what it says, with evidence by step
    readers/        five formats -> trajectories                          detectors/      one a file: trajectory -> findings
    provenance.py   what the patch has from a forbidden place             contrast.py     against others of the same task
    score.py        findings -> one number                                inspect.py      all of that for many trajectories
    judge/          a model with tools that must quote                    cluster.py      new kinds over a run
    queue.py        cases for a person                                    confirm.py      a case -> a regression test
    run.py          `etude monitor`                                       consequence.py  what a flag changes in training

Not here: the grader (grade/), the page (studio/monitor_page.py), the step that learns (train.py).
"""
