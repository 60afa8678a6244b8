"""From tokens to points: words with their positions and types, or patches of an image; and from points to what a model says."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow._types import DType
from attnflow.measures import Affine
from attnflow.models.block import Norm
from attnflow.numerics.arrays import array


class WordEmbedding(eqx.Module):
    r"""$x_i = B\, N(E_{w_i} + P_i + T_0) + c$: words $E$ `[v, e]`, positions $P$ `[p, e]` and types $T$ `[t, e]` where the family has them,
    the norm $N$, and the map $(B, c)$ from $e$ to $d$ dimensions of ALBERT."""

    words: Float[Array, "v e"]
    positions: Float[Array, "p e"] | None = None
    types: Float[Array, "t e"] | None = None
    norm: Norm | None = None
    lift: Affine | None = None

    def __call__(self, ids: Int[Array, " n"]) -> Float[Array, "n d"]:
        x = self.words[ids]
        if self.types is not None:
            x = x + self.types[:1]
        if self.positions is not None:
            # Texts are padded: tokens past the last position are of weight zero.
            x = x + self.positions[jnp.minimum(jnp.arange(len(ids)), len(self.positions) - 1)]
        x = x if self.norm is None else self.norm(x)
        return x if self.lift is None else self.lift(x)


class PatchEmbedding(eqx.Module):
    r"""An image cut into square patches, each a token $x_i = W p_i + b + P_i$, after a class token: `kernel` $W$ `[d, c, s, s]`.

    An image `[h, w, c]` of bytes, or of numbers in $[0, 1]$, is first taken to `(image - mean) / std`.
    """

    kernel: Float[Array, "d c s s"]
    bias: Float[Array, " d"]
    first: Float[Array, " d"]
    positions: Float[Array, "n d"]
    mean: tuple[float, ...] = eqx.field(static=True)
    std: tuple[float, ...] = eqx.field(static=True)
    size: tuple[int, int] = eqx.field(static=True)
    # How Pillow resizes an image, by its number there.
    resample: int = eqx.field(static=True, default=2)

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, "n d"]:
        scaled = (image - jnp.asarray(self.mean, image.dtype)[None, None]) / jnp.asarray(self.std, image.dtype)[None, None]
        side, (rows, columns) = self.kernel.shape[-1], self.grid
        patches = scaled.reshape(rows, side, columns, side, -1).transpose(0, 2, 4, 1, 3).reshape(rows * columns, -1)
        tokens = patches @ self.kernel.reshape(len(self.kernel), -1).T + self.bias[None]
        return jnp.concatenate([self.first[None], tokens]) + self.positions

    def pixels(self, image: Any, dtype: DType) -> Array:
        """An image as numbers in [0, 1]; one of Pillow is resized as the model asks, an array must have its size."""
        if hasattr(image, "convert") and hasattr(image, "resize"):
            image = image.convert("RGB").resize(self.size[::-1], resample=self.resample)
        found = np.asarray(image)
        due = (*self.size, self.kernel.shape[1])
        if found.shape != due:
            raise ValueError(f"an image must have shape {list(due)}, height, width and colors, got {list(found.shape)}; resize it first")
        if found.dtype == np.uint8:
            return array(found / 255.0, dtype)
        if not np.issubdtype(found.dtype, np.floating) or not np.isfinite(found).all() or found.min() < 0 or found.max() > 1:
            raise ValueError(
                f"an image must be bytes (uint8), or numbers between 0 and 1, got {found.dtype} from {found.min()} to {found.max()}"
            )
        return array(found, dtype)

    @property
    def grid(self) -> tuple[int, int]:
        """How many rows and columns of patches there are."""
        return self.size[0] // self.kernel.shape[-1], self.size[1] // self.kernel.shape[-1]

    @property
    def names(self) -> list[str]:
        """The class token, then the row and the column of each patch."""
        rows, columns = self.grid
        return ["[CLS]", *(f"{i},{j}" for i in range(rows) for j in range(columns))]


class Head(eqx.Module):
    r"""What a model says at a token: logits $D\, T(x) + b$ over `D [v, e]`, the vocabulary or classes, $T$ the transformation of masked
    families (a layer, an activation, a norm)."""

    matrix: Float[Array, "v e"]
    bias: Float[Array, " v"] | None = None
    layer: Affine | None = None
    activation: Callable[[Array], Array] | None = eqx.field(static=True, default=None)
    norm: Norm | None = None

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n v"]:
        for part in (self.layer, self.activation, self.norm):
            x = x if part is None else part(x)
        logits = x @ self.matrix.T
        return logits if self.bias is None else logits + self.bias[None]
