"""What a normalisation is."""

import abc

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from attnflow.measures import Affine, Gaussian
from attnflow.sums import Atoms, Engine, Logit


class Average(eqx.Module):
    """A map of queries, `x -> integral k(x, y) y dmu(y)`, for one measure."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        """The average at every query; under a mask the order of the queries is needed."""

    @property
    def report(self) -> dict[str, PyTree]:
        """Convergence figures of whatever was iterated to build it; nothing for closed forms."""
        return {}


class Normalisation(eqx.Module):
    """Turns a logit into a kernel `k(x, y)` against a measure."""

    @abc.abstractmethod
    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> Average:
        r"""$x \mapsto \int k(x, y)\, y \,d\mu(y)$ for a weighted cloud."""

    @abc.abstractmethod
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        r"""The attention matrix $k(x_i, y_j)\, w_j$, dense."""

    def gaussian(self, logit: Logit, mu: Gaussian) -> Affine:
        r"""$x \mapsto \int k(x, y)\, y \,d\mu(y)$ for a Gaussian, where it is affine."""
        raise ValueError(
            f"{type(self).__name__} attention does not keep a Gaussian Gaussian; "
            "draw tokens with mu.sample(n, key=key), or use Softmax, Sinkhorn or Linear"
        )

    def check_maskable(self) -> None:
        """Raise if no kernel of this kind lives on a mask."""
