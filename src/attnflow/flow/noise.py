"""What `solve` makes of `noise`, `key` and `step`."""

from typing import Any

from attnflow import _check as check
from attnflow._arrays import positive
from attnflow.flow.times import Times
from attnflow.measures import FlowingMeasure, Noise, Particles

# Steps of a noisy run of tokens over its span, if the user does not say.
_STEPS = 1000


def noise_of(sigma: Any, key: Any, mu: FlowingMeasure) -> Noise | None:
    """The noise, `None` for none."""
    if sigma is None:
        if key is not None:
            raise ValueError("key is for noise, got a key and no noise=sigma")
        return None
    if isinstance(mu, Particles) and key is None:
        raise ValueError("noise on tokens is drawn from a key, got none; pass key=jax.random.key(seed)")
    check.key("key", key, optional=True)
    return Noise(positive("noise", sigma).astype(mu.dtype), key if isinstance(mu, Particles) else None)


def default_step(mu: FlowingMeasure, step: Any, noise: Noise | None, span: Times) -> Any:
    """The step of a run: the given one; for tokens with noise a fixed one."""
    if step is not None or noise is None or not isinstance(mu, Particles):
        return step
    return span.length / _STEPS
