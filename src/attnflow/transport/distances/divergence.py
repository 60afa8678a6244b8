"""The Sinkhorn divergence: entropic transport without its bias."""

from typing import Any

from jaxtyping import Array, Float

from attnflow._types import Scalar
from attnflow.measures import Measure
from attnflow.transport.bridge.solve import bridge, self_bridge


def sinkhorn_divergence(mu: Measure, nu: Measure, eps: Scalar, **options: Any) -> Float[Array, ""]:
    r"""$\mathrm{OT}(\mu, \nu) - \frac12 \mathrm{OT}(\mu, \mu) - \frac12 \mathrm{OT}(\nu, \nu)$, OT the cost of a bridge: positive and zero
    only for $\mu = \nu$ (arXiv:1810.08278).

    For small $\varepsilon$ it is about $\frac12 W_2^2$, for large $\varepsilon$ $\frac12 |m - n|^2$, half the squared distance of the
    means. Options are those of `bridge`: it runs on every engine, so that two clouds of a million tokens in $\mathbb{R}^1$ to
    $\mathbb{R}^3$ can be compared. A `Grid` in $\mathbb{R}^d$ counts as tokens at the centers of its cells.

    Every cost is a value of its dual, in which an error of the potentials enters squared. The potential of $\nu$ with itself gives a lower
    bound on $\mathrm{OT}(\mu, \nu)$ that alone makes the divergence non-negative, whatever the iteration between the two has reached.
    """
    across = bridge(mu, nu, eps, **options)
    # From the ends of this bridge, which are tokens where a mixture came in.
    assert across.target is not None
    first, last = (self_bridge(end, eps, **options) for end in (across.measure, across.target))
    return across.cost_from(last) - 0.5 * (first.cost + last.cost)
