"""A block of a transformer: attention and a perceptron, each with its norm."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from attnflow._types import Scalar
from attnflow.attention.normalizations.base import Normalization
from attnflow.attention.stacked import StackedHeads
from attnflow.measures import Field, Particles, velocity_of
from attnflow.sums import Request

Norm = Callable[[Float[Array, "n d"]], Float[Array, "n d"]]


class Block(eqx.Module):
    r"""Two half layers $x \leftarrow F(x)$, of attention and of a perceptron, each a field $f$ with its norm $N$:

    - pre: $F(x) = x + f_\nu(N(x))$, $\nu$ the measure pushed by the norm (GPT-2, Llama, ViT);
    - post: $F(x) = N(x + f_\mu(x))$ (BERT, ALBERT).

    A half layer of size $h$ is $x \leftarrow (1 - h) x + h F(x)$: a step of Euler's method along $x' = F(x) - x$, which for pre is
    $x + h f_\nu(N(x))$. With $h = 1$ it is the trained one.
    """

    attention: StackedHeads
    perceptron: Field
    norms: tuple[Norm, Norm]
    pre: bool = eqx.field(static=True)

    def half(
        self, which: int, mu: Particles, step: Scalar = 1.0, sums: Request | None = None
    ) -> tuple[Float[Array, "n d"], dict[str, PyTree]]:
        """The tokens after attention (0) or after the perceptron (1), and the figures of what was iterated for them."""
        return _half((self.attention, self.perceptron)[which], self.norms[which], self.pre, mu, step, sums)

    def seen(self, which: int, mu: Particles) -> Particles:
        """The tokens as attention (0) or the perceptron (1) sees them: after the norm where that comes first."""
        return mu.with_state(self.norms[which](mu.points)) if self.pre else mu

    def with_normalization(self, normalize: Normalization) -> "Block":
        """The same weights under another normalization of attention."""
        laws = self.attention.laws
        if laws.mask is not None:
            normalize.check_maskable()
        batched = jax.tree.map(lambda leaf: leaf[None], normalize)
        return eqx.tree_at(lambda block: block.attention.laws.normalize, self, batched)


# One program for all layers of a shape, and for the halves of families that share it.
@eqx.filter_jit
def _half(
    field: Field, norm: Norm, pre: bool, mu: Particles, step: Scalar, sums: Request | None
) -> tuple[Float[Array, "n d"], dict[str, PyTree]]:
    seen = mu.with_state(norm(mu.points)) if pre else mu
    velocity = velocity_of(field, seen, 0.0, sums)
    moved = velocity(seen.points, seen.sequence)
    if pre:
        return mu.points + step * moved, velocity.report
    return (1 - step) * mu.points + step * norm(mu.points + moved), velocity.report
