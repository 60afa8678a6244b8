"""The Sinkhorn divergence: entropic transport without its bias."""

from typing import Any

from jaxtyping import Array, Float

from attnflow.measures import Measure
from attnflow.transport.bridge import bridge, self_bridge


def sinkhorn_divergence(mu: Measure, nu: Measure, eps: Any, **options: Any) -> Float[Array, ""]:
    """`OT(mu, nu) - 1/2 OT(mu, mu) - 1/2 OT(nu, nu)`, OT the cost of a bridge: positive and zero only for mu = nu (arXiv:1810.08278).

    For small eps it is about `1/2 W2^2`, for large eps `1/2 |m - n|^2`, half the squared distance of the means. Options are those of
    `bridge`: it runs on every engine, so that two clouds of a million tokens in R^1 to R^3 can be compared. A `Grid` in R^d counts as
    tokens at the middles of its cells.
    """
    across = bridge(mu, nu, eps, **options)
    # Its ends, which are tokens where a mixture came in.
    assert across.target is not None
    ends = (across.measure, across.target)
    return across.cost - 0.5 * sum(self_bridge(end, eps, **options).cost for end in ends)
