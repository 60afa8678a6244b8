"""From a spec to the field and the observables."""

import jax
import jax.numpy as jnp

import attnflow as af
from attnflow._types import Observable
from attnflow.simulate.spec import Spec


def field(spec: Spec, dim: int) -> af.Field:
    """The law, or the mean of several, each with its own random numbers."""
    keys = jax.random.split(jax.random.key(spec.seed + 1), len(spec.law))
    heads = [head.build(dim, key) for head, key in zip(spec.law, keys)]
    return heads[0] if len(heads) == 1 else af.MultiHead(heads)


def observables(spec: Spec, law: af.Field) -> dict[str, Observable]:
    """The compiled functions along the way, by name; clusters are counted afterwards. The energy is that of beta = 1 / temperature, scaled
    to lie in (0, 1] on the sphere."""
    beta = 1 / spec.law[0].temperature
    known = {
        "energy": lambda mu: 2 * beta * af.energy(mu, beta, log_scale=-beta),
        "order": af.order_parameter,
        "effective_rank": af.effective_rank,
        "attention_entropy": lambda mu: jnp.mean(af.attention_entropy(law, mu)),
    }
    return {name: known[name] for name in spec.output.observe if name in known}
