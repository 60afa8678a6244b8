"""A block of a transformer: attention and a perceptron, each with its norm."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from attnflow.attention.multi_head import Heads
from attnflow.attention.normalizations.base import Normalization
from attnflow.measures import Field, Particles, velocity_of
from attnflow.sums import Mask, Request

Norm = Callable[[Float[Array, "n d"]], Float[Array, "n d"]]


class Block(eqx.Module):
    r"""Two half layers, of attention and of a perceptron, with norms $N_1$, $N_2$; for each field $f$ with its norm $N$ and the step $h$

    - pre: $x \leftarrow x + h f_\nu(N(x))$, $\nu$ the measure pushed by the norm (GPT-2, Llama, ViT);
    - post: $x \leftarrow N(x + h f_\mu(x))$ (BERT, ALBERT).
    """

    attention: Heads
    perceptron: Field
    norms: tuple[Norm, Norm]
    pre: bool = eqx.field(static=True)

    def half(
        self, which: int, mu: Particles, step: float = 1.0, sums: Request | None = None
    ) -> tuple[Float[Array, "n d"], dict[str, PyTree]]:
        """The tokens after attention (0) or after the perceptron (1), and the figures of what was iterated for them."""
        field, norm = (self.attention, self.perceptron)[which], self.norms[which]
        seen = self.seen(which, mu)
        velocity = velocity_of(field, seen, 0.0, sums)
        moved = mu.points + step * velocity(seen.points, seen.sequence)
        return (moved if self.pre else norm(moved)), velocity.report

    def seen(self, which: int, mu: Particles) -> Particles:
        """The tokens as attention (0) or the perceptron (1) sees them: after the norm where that comes first."""
        return mu.with_state(self.norms[which](mu.points)) if self.pre else mu

    def with_attention(self, normalize: Normalization | None = None, mask: Mask | None = None) -> "Block":
        """The same weights under another normalization or mask; `None` keeps the one that is there."""
        laws = self.attention.laws
        for name, part in (("normalize", normalize), ("mask", mask)):
            if part is not None:
                batched = jax.tree.map(lambda leaf: leaf[None], part)
                laws = eqx.tree_at(lambda laws, name=name: getattr(laws, name), laws, batched, is_leaf=lambda leaf: leaf is None)
        if laws.mask is not None:
            laws.normalize.check_maskable()
        return eqx.tree_at(lambda block: block.attention.laws, self, laws)
