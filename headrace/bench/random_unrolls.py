"""Items whose contents are random and keep the contract: for learners that are to be measured without actors."""

from __future__ import annotations

import numpy as np

from headrace import unroll
from headrace.agents.distributions import sample
from headrace.envs.spaces import Spaces
from headrace.wire.payload import Buffer, PayloadSchema

_END_EVERY = 16  # ticks, on average: a termination


def random_unrolls(schema: PayloadSchema, spaces: Spaces, count: int, seed: int) -> Buffer:
    """Payloads [count, payload_bytes] of a policy that prefers nothing, always the same for a seed.

    All ticks are valid, some terminate, and nothing begins after the first tick; weights are version 0 of epoch 1.
    """
    random = np.random.default_rng(seed)
    payloads = schema.allocate(count)
    views = schema.views(payloads)
    shape = views[unroll.ACTION].shape
    nothing_said = np.zeros((shape[0] * shape[1], spaces.actions.num_logits), np.float32)
    action, log_prob = sample(spaces.actions, nothing_said, None, random)
    for name, view in views.items():
        if name in (unroll.VALID, unroll.ACTION_MASK):
            view[:] = True
        elif name == unroll.ACTION:
            view[:] = action.reshape(shape)
        elif name == f"{unroll.BEHAVIOUR}/log_prob":
            view[:] = log_prob.reshape(shape[:2])
        elif name == unroll.TERMINATED:
            view[:] = random.random(view.shape) < 1 / _END_EVERY
        elif name == unroll.VERSION:
            view[:] = unroll.pack_version(1, 0)
        elif name == unroll.DISCOUNT:
            view[:] = 0.9
        elif view.dtype == np.uint8:
            view[:] = random.integers(0, 256, view.shape)
        elif view.dtype.kind == "f":
            view[:] = random.standard_normal(view.shape)
    return payloads
