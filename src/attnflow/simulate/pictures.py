"""The measure of a file: what a picture needs, how it is built, and what may be asked of it. A new picture is one more class here.

JAX is imported where something is built: a file that makes no sense is refused without it.
"""

import abc
import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

import attnflow as af
from attnflow.studies import Check
from attnflow.studies.tools.constraints import Count, Meta, Positive, listed

if TYPE_CHECKING:
    from attnflow.simulate.law import Law
    from attnflow.simulate.spec import Spec

Row = Annotated[list[float], Meta(min_length=1)]
Matrix = Annotated[list[Row], Meta(min_length=1)]

TOLERANCES = ("time.rtol", "time.atol")


class Measure(abc.ABC):
    """A picture of the measure. A subclass is a frozen dataclass, its fields are the keys of the file; the first, `picture`, is its name.

    - `tokens`: whether it has tokens in an order, which masks, clusters, consensus, attention entropy and movies are of.
    - `has_energy`: whether its energy can be watched.
    """

    picture: str
    tokens: ClassVar[bool] = False
    has_energy: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension of the ambient space."""

    @property
    @abc.abstractmethod
    def size(self) -> tuple[int, list[str]]:
        """How many numbers a state has, and the keys that say so."""

    @abc.abstractmethod
    def build(self, seed: int, folder: pathlib.Path) -> "af.Particles | af.Gaussian | af.Grid":
        """The measure at the start; files are looked for in the folder."""

    def resolved(self, folder: pathlib.Path) -> "Measure":
        """This picture with what its files say; `ValueError` if its keys do not fit together."""
        return self

    def check_head(self, head: "Law", at: str) -> None:  # noqa: B027
        """Raise if the picture is not preserved by a head, the table `at`."""

    def unused(self, spec: "Spec") -> dict[str, str]:
        """The keys that are not read where the measure is this one, such as `measure.scale` or `time.rtol`, and why."""
        return {}

    @property
    def on_sphere(self) -> bool:
        """Whether it lies on the sphere or the circle."""
        return False

    def checks(self, path: "af.Path") -> list[Check]:
        """What holds along every path of the picture."""
        import jax

        finite = all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in jax.tree.leaves(path.states))
        return [Check("states are finite (1: yes)", float(finite), 1.0, 0.0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Particles(Measure):
    """Tokens, drawn at random or read from a .npy file `[n, d]`."""

    picture: Literal["particles"] = "particles"  # pyright: ignore[reportIncompatibleVariableOverride]
    n: Count = 256
    dim: Count = 3  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    space: Literal["sphere", "euclidean"] = "sphere"
    start: Literal["uniform", "hemisphere", "orthonormal", "normal", "ball", "cube"] = "uniform"
    scale: Positive = 1.0
    order: Literal["position", "fraction"] = "position"
    file: str | None = None

    tokens: ClassVar[bool] = True

    @property
    def size(self) -> tuple[int, list[str]]:
        return self.n * self.dim, ["measure.n", "measure.dim"]

    @property
    def on_sphere(self) -> bool:
        return self.space == "sphere"

    def build(self, seed: int, folder: pathlib.Path) -> "af.Particles":
        import jax

        space, order = af.Sphere() if self.on_sphere else af.Euclidean(), None if self.order == "position" else self.order
        if self.file is not None:
            return af.Particles(np.load(folder / self.file, allow_pickle=False).astype(float), order=order, space=space)
        draw = getattr(af.samplers, "sphere" if self.start == "uniform" else self.start)
        scale = {"ball": {"radius": self.scale}, "cube": {"half_width": self.scale}}.get(self.start, {})
        points = draw(self.n, self.dim, key=jax.random.key(seed), **scale).points
        return af.Particles(self.scale * points if self.start == "normal" else points, order=order, space=space)

    def resolved(self, folder: pathlib.Path) -> "Particles":
        if self.file is not None:
            n, dim = _stored(folder / self.file)
            self = dataclasses.replace(self, n=n, dim=dim)
        drawn = self.file is None
        if drawn and (self.start in ("uniform", "hemisphere", "orthonormal")) != self.on_sphere:
            names = "uniform, hemisphere or orthonormal" if self.on_sphere else "normal, ball or cube"
            raise ValueError(f"measure.start must be {names} where measure.space is {self.space!r}, got {self.start!r}")
        if self.on_sphere and self.dim < 2:
            raise ValueError(f"measure.dim must be at least 2 on the sphere, got {self.dim}")
        if drawn and self.start == "orthonormal" and self.n > self.dim:
            raise ValueError(f"measure.n must be at most measure.dim for orthonormal tokens, got {self.n} and {self.dim}")
        return self

    def check_head(self, head: "Law", at: str) -> None:
        if head.mask == "window" and head.width is not None and head.width < 1 and self.order == "position":
            raise ValueError(f"{at}.width must be at least 1, in tokens, got {head.width}; or set measure.order = 'fraction'")

    def unused(self, spec: "Spec") -> dict[str, str]:
        idle = {"measure.scale": "of normal, ball and cube, got the sphere"} if self.on_sphere else {}
        if self.file is not None:
            idle |= dict.fromkeys(
                ("measure.n", "measure.dim", "measure.start", "measure.scale"), "not read where measure.file has the tokens"
            )
        if all(head.mask == "none" for head in spec.law):
            idle["measure.order"] = "read by masks alone, got law.mask = 'none'"
        return idle if spec.time.noise is None else idle | dict.fromkeys(TOLERANCES, "not for tokens with noise, whose steps are fixed")

    def checks(self, path: "af.Path") -> list[Check]:
        if not self.on_sphere:
            return Measure.checks(self, path)
        radii = np.linalg.norm(np.asarray(path.states, dtype=np.float64), axis=2)
        return [Check("largest distance of a token to the sphere", float(np.abs(radii - 1).max()), 0.0, 16 * _round_off(path))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian(Measure):
    """A Gaussian."""

    picture: Literal["gaussian"] = "gaussian"  # pyright: ignore[reportIncompatibleVariableOverride]
    mean: Row
    cov: Matrix

    has_energy: ClassVar[bool] = False

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def size(self) -> tuple[int, list[str]]:
        return self.dim * (self.dim + 1), ["measure.mean"]

    def build(self, seed: int, folder: pathlib.Path) -> "af.Gaussian":
        return af.Gaussian(self.mean, self.cov)

    def resolved(self, folder: pathlib.Path) -> "Gaussian":
        if [self.dim] * self.dim != [len(row) for row in self.cov]:
            size = f"{self.dim} x {self.dim}"
            raise ValueError(f"measure.cov must be {size} like measure.mean, got rows of {[*map(len, self.cov)]} numbers")
        return self

    def check_head(self, head: "Law", at: str) -> None:
        affine = ("softmax", "sinkhorn", "linear")
        if head.normalization not in affine:
            raise ValueError(f"{at}.normalization must be {listed(affine)}, for a Gaussian to stay one, got {head.normalization!r}")
        if head.hidden:
            raise ValueError(f"{at}.hidden must be 0, for a Gaussian to stay one, got {head.hidden}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Measure):
    """A density: a wave on the circle, or a normal law cut to an interval or a square."""

    picture: Literal["grid"] = "grid"  # pyright: ignore[reportIncompatibleVariableOverride]
    domain: Literal["circle", "interval", "square"] = "circle"
    cells: Annotated[int, Meta(ge=4)] = 512
    mode: Count = 1
    amplitude: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    half_width: Positive = 5.0
    deviation: Positive = 1.0

    @property
    def dim(self) -> int:
        return 1 if self.domain == "interval" else 2

    @property
    def size(self) -> tuple[int, list[str]]:
        return self.cells ** (2 if self.domain == "square" else 1), ["measure.cells"]

    @property
    def on_sphere(self) -> bool:
        return self.domain == "circle"

    def build(self, seed: int, folder: pathlib.Path) -> "af.Grid":
        """The density at the middles of the cells, of mass one."""
        import jax.numpy as jnp

        side = af.Interval(-self.half_width, self.half_width, self.cells)
        axes = {"circle": [af.Circle(self.cells)], "interval": [side], "square": [side, side]}[self.domain]
        mesh = af.Grid.uniform(axes).mesh
        if self.on_sphere:
            values = 1 + self.amplitude * jnp.cos(self.mode * jnp.arctan2(mesh.points[:, 1], mesh.points[:, 0]))
        else:
            values = jnp.exp(-0.5 * jnp.sum(mesh.points**2, axis=1) / self.deviation**2)
        return af.Grid((values / jnp.sum(values * mesh.volumes)).reshape(mesh.shape), mesh)

    def resolved(self, folder: pathlib.Path) -> "Grid":
        if self.on_sphere and 2 * self.mode >= self.cells:
            raise ValueError(f"measure.mode must be below half of measure.cells, got {self.mode} of {self.cells} cells")
        width = 2 * self.half_width / self.cells
        if not self.on_sphere and self.deviation < width:
            raise ValueError(
                f"measure.deviation must be at least the width of a cell, {width:g}, got {self.deviation}; or raise measure.cells"
            )
        return self

    def unused(self, spec: "Spec") -> dict[str, str]:
        of_circle, of_box = ("measure.mode", "measure.amplitude"), ("measure.half_width", "measure.deviation")
        of, keys = ("the interval and the square", of_box) if self.on_sphere else ("the circle", of_circle)
        idle = dict.fromkeys(keys, f"of {of}, got the domain {self.domain!r}")
        return idle | dict.fromkeys(TOLERANCES, "not for a grid, which has steps of its own")

    def checks(self, path: "af.Path") -> list[Check]:
        mass = np.asarray(path.final.mass)
        low = Check("least mass of a cell", float(min(mass.min(), 0.0)), 0.0, 0.0)
        return [Check("mass at the end", float(mass.sum()), 1.0, 1e4 * _round_off(path)), low]


PICTURES: dict[str, type[Measure]] = {kind.picture: kind for kind in (Particles, Gaussian, Grid)}


def _round_off(path: "af.Path") -> float:
    return float(np.finfo(path.measure.dtype).eps)


def _stored(file: pathlib.Path) -> tuple[int, int]:
    """How many tokens there are in a file, and of which dimension."""
    cure = "give an .npy file of points [n, dim], as numpy.save writes it"
    if not file.is_file():
        raise ValueError(f"measure.file: there is no file {str(file)!r}; {cure}")
    try:
        points = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise ValueError(f"measure.file: {str(file)!r} is not an .npy file of numbers; {cure}") from None
    if not isinstance(points, np.ndarray) or points.ndim != 2 or points.dtype.kind not in "fiu" or not points.size:
        got = f"{points.dtype} of shape {list(points.shape)}" if isinstance(points, np.ndarray) else "an archive"
        raise ValueError(f"measure.file must hold real points [n, dim], got {got}; {cure}")
    if not np.isfinite(points).all():
        raise ValueError(f"measure.file must hold finite points, got nan or inf in {str(file)!r}; {cure}")
    return points.shape[0], points.shape[1]
