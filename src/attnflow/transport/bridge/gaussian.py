"""The bridge between Gaussians, in closed form."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import ArrayLike
from attnflow.measures import Affine, Gaussian
from attnflow.numerics.arrays import array
from attnflow.transport.bridge.base import Bridge
from attnflow.transport.sinkhorn.gaussian import conditional_shape, scaled_gaussian


def gaussian_bridge(mu: Gaussian, nu: Gaussian | None, eps: Float[Array, ""]) -> "GaussianBridge":
    """The bridge from `mu` to `nu`, or to itself."""
    eps = array(eps, mu.dtype)
    return GaussianBridge(mu, nu, eps, scaled_gaussian(jnp.eye(mu.dim, dtype=mu.dtype) / eps, mu, nu))


class GaussianBridge(Bridge):
    r"""The bridge between Gaussians $\mathcal{N}(m, S)$ and $\mathcal{N}(n, T)$, in closed form: $B(x) = n + W (x - m) / \varepsilon$, $W$
    the covariance of $y$ given $x$.

    For $\mathcal{N}(0, s^2)$ and itself $W / \varepsilon = (\sqrt{s^4 + \varepsilon^2 / 4} - \varepsilon / 2) / s^2$ (Janati et al. 2020,
    arXiv:2006.02572).
    """

    measure: Gaussian
    target: Gaussian | None
    eps: Float[Array, ""]
    map: Affine

    def barycentric(self, x: ArrayLike) -> Float[Array, "m d"]:
        """$B(x)$ at every row of `x`."""
        return self.map(self._rows(x))

    def pull(self) -> Affine:
        """`x -> B(x) - x`."""
        return self.map.minus(jnp.eye(self.measure.dim, dtype=self.eps.dtype))

    def plan(self) -> Gaussian:
        r"""The coupling, a Gaussian on $\mathbb{R}^{2d}$."""
        mu, nu = self._ends
        across = self.map.matrix @ mu.cov
        return Gaussian(jnp.concatenate([mu.mean, nu.mean]), jnp.block([[mu.cov, across.T], [across, nu.cov]]))

    def potential_at(self, x: ArrayLike) -> Float[Array, " m"]:
        r"""$\varphi(x) = \frac12 \langle u, (I - W / \varepsilon) u\rangle + \langle u, m - n\rangle + c$, $u = x - m$."""
        (mu, nu), rest = self._ends, jnp.eye(self.measure.dim, dtype=self.measure.dtype) - self.map.matrix
        u = self._rows(x) - mu.mean[None]
        return 0.5 * jnp.sum((u @ rest) * u, axis=1) + u @ (mu.mean - nu.mean) + 0.5 * (self.cost - jnp.trace(rest @ mu.cov))

    @property
    def cost(self) -> Float[Array, ""]:
        r"""$\min_\pi \int \frac12 |x-y|^2 \,d\pi + \varepsilon\, \mathrm{KL}(\pi \mid \mu \otimes \nu)$."""
        mu, nu = self._ends
        distance = jnp.sum((mu.mean - nu.mean) ** 2) + jnp.trace(mu.cov) + jnp.trace(nu.cov) - 2 * jnp.trace(self.map.matrix @ mu.cov)
        w, _ = conditional_shape(jnp.eye(mu.dim, dtype=mu.dtype) / self.eps, mu, nu)
        # The determinant of W T^-1, -2 KL(pi | mu x nu) in logarithms, is that of w, also where T has no inverse.
        return 0.5 * distance - 0.5 * self.eps * jnp.linalg.slogdet(w)[1]

    @property
    def _ends(self) -> tuple[Gaussian, Gaussian]:
        return self.measure, self.measure if self.target is None else self.target
