"""How a grid steps in time: a stepper that keeps masses positive, and a controller that keeps it within its bound."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow._types import PyTree, Scalar
from attnflow.measures.grid.mesh import Mesh
from attnflow.measures.grid.volumes import heat

# A step may move half the mass of a cell; the next one aims at a little less.
_MOST, _AIM = 0.5, 0.4


class Transported(diffrax.AbstractTerm[Any, Any]):
    """The rate of change of the masses together with the outflow that bounds the step."""

    rate: Callable[[Scalar, Array], tuple[Array, Array]]

    def vf(self, t: Scalar, y: Array, args: PyTree) -> tuple[Array, Array]:
        return self.rate(t, y)

    def contr(self, t0: Scalar, t1: Scalar, **kwargs: PyTree) -> Scalar:
        return t1 - t0

    def prod(self, vf: tuple[Array, Array], control: Scalar) -> Array:
        return vf[0] * control


class Upwind(diffrax.AbstractSolver[Any]):
    """Two Euler steps, averaged with the start: Heun's method in the form that keeps what each Euler step keeps (Shu and Osher 1988).

    With noise each step lies between two half steps of the heat flow (Strang), which are exact: noise does not bound the step. In place
    of an error the step gives its Courant number, the largest share of a cell's volume that flowed out.
    """

    mesh: Mesh
    diffusion: Array | None

    term_structure: ClassVar[PyTree] = diffrax.AbstractTerm
    interpolation_cls: ClassVar[PyTree] = diffrax.LocalLinearInterpolation

    def order(self, terms: PyTree) -> int:
        return 2

    def error_order(self, terms: PyTree) -> int:
        return 1

    def init(self, terms: PyTree, t0: Scalar, t1: Scalar, y0: Array, args: PyTree) -> None:
        return None

    def func(self, terms: PyTree, t0: Scalar, y0: Array, args: PyTree) -> tuple[Array, Array]:
        return terms.vf(t0, y0, args)

    def step(
        self, terms: PyTree, t0: Scalar, t1: Scalar, y0: Array, args: PyTree, solver_state: None, made_jump: PyTree
    ) -> tuple[Array, Array, dict[str, Array], None, diffrax.RESULTS]:
        h = t1 - t0
        start = self._spread(y0, h / 2)

        # A loop over the two stages, so that the velocity is compiled once.
        def euler(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], None]:
            mass, number = carry
            rate, out = terms.vf(t, mass, args)
            return (mass + h * rate, jnp.maximum(number, h * out)), None

        (twice, number), _ = jax.lax.scan(euler, (start, jnp.zeros_like(h)), jnp.stack([t0, t1]))
        y1 = self._spread(0.5 * (start + twice), h / 2)
        return y1, number, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful

    def _spread(self, mass: Array, time: Scalar | np.ndarray) -> Array:
        if self.diffusion is None:
            return mass
        return heat(self.mesh, mass.reshape(-1), self.diffusion * time).reshape(mass.shape)


class Courant(diffrax.AbstractStepSizeController[Any, Any]):
    """Steps as long as the Courant number allows, and no longer than `longest`."""

    longest: Array

    def wrap(self, direction: PyTree) -> "Courant":
        return self

    def init(
        self, terms: PyTree, t0: Scalar, t1: Scalar, y0: Array, dt0: PyTree, args: PyTree, func: Callable, error_order: PyTree
    ) -> tuple[Array, tuple[()]]:
        _, out = func(terms, t0, y0, args)
        return t0 + jnp.minimum(_AIM / jnp.maximum(out, jnp.finfo(out.dtype).tiny), self.longest), ()

    def adapt_step_size(
        self, t0: Array, t1: Array, y0: Array, y1_candidate: Array, args: PyTree, y_error: Array, error_order: int, controller_state: PyTree
    ) -> tuple[Array, Array, Array, bool, tuple[()], diffrax.RESULTS]:
        h, number = t1 - t0, jnp.asarray(y_error)
        keep = number <= _MOST
        factor = jnp.clip(_AIM / jnp.maximum(number, jnp.finfo(number.dtype).tiny), 0.2, 2.0)
        # NaN is not kept, and is tried again with a shorter step.
        factor = jnp.where(jnp.isfinite(number), factor, 0.2)
        size = jnp.minimum(h * factor, self.longest)
        start = jnp.where(keep, t1, t0)
        return keep, start, start + size, False, (), diffrax.RESULTS.successful
