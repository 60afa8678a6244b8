"""The keys of a sum, and the rows that an engine works on."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from attnflow.sums.logit import Logit
from attnflow.sums.mask import Mask, Sight


class Atoms(NamedTuple):
    """The keys of a sum: `points [n, d]` with `log_weights [n]`, minus infinity for no mass; with a mask, their `order [n]` too.

    `engine` is one made for these keys, such as that of a lattice; it is used when the user does not choose.
    """

    points: Float[Array, "n d"]
    log_weights: Float[Array, " n"]
    order: Float[Array, " n"] | None = None
    mask: Mask | None = None
    engine: Any = None

    def sight(self, order: Float[Array, " m"] | None) -> Sight | None:
        """What queries of this order see of the keys; `None` without a mask."""
        if self.mask is None:
            return None
        if order is None or self.order is None:
            raise ValueError("a masked law needs the order of the queries, got none; call velocity(x, order)")
        return Sight(self.mask, order, self.order)


def rows(engine: Any, logit: Logit, x: Float[Array, "m d"], atoms: Atoms) -> tuple[Array, Array, Array, Array, Array]:
    """q, k, b, a, c with `l(x_i, y_j) + log w_j = <q_i, k_j> + b_j + a_i` and `k = y - c`."""
    c = engine.centre(atoms.points)
    q, b, a, k = logit.centred(x, atoms.points, c)
    return q, k, b + atoms.log_weights, a, c
