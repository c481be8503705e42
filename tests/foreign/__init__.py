"""A second actor, written from docs/wire-protocol.md and proto/ alone: nothing of Headrace is imported in here.

`python -m foreign --learner HOST:PORT` joins a run and acts in it. It is small and plain on purpose: one thread steps
the environments and speaks with replay, another one reads weights.

    codec.py      headers, the payload's layout, safetensors
    delivery.py   items to replay: window, acknowledgements, resending
    learner.py    Join, Describe, Weights, Report
    acting.py     environments by the NEXT_STEP rule, the built-in network in numpy
"""
