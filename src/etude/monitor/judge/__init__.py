"""A model with tools that reads one trajectory and must quote what it says.

    fence.py   what is shown is data     case.py   what it may look at     tools.py   its tools     protocol.py   one judgement
    judges.py  endpoint, engine, script, record     rules.py   a judge without a model     many.py   all of a run

Not here: what follows from a verdict (monitor/run.py).
"""
