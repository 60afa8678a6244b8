"""Axes: one of one's own works as the others do, and what a law asks of a grid is asked of its axes."""

import dataclasses
import types
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.measures import Axis, axes_from
from attnflow.measures.grid.mesh import mesh
from attnflow.measures.grid.volumes import face_velocity, transport
from attnflow.measures.grid.zonal import AroundAxis
from attnflow.measures.velocity import Plain
from attnflow.sums import Lattice


@dataclasses.dataclass(frozen=True)
class Widening(Axis):
    """Cells of [-reach, reach] that widen outwards by a constant factor."""

    reach: float
    cells: int
    names = ("place", "other")

    @property
    def edges(self):
        return self.reach * np.sinh(2 * np.linspace(-1, 1, self.cells + 1)) / np.sinh(2)


@dataclasses.dataclass(frozen=True)
class Height(af.Interval):
    """An interval under another name."""

    names = ("height",)


ALL = {
    "line": [af.Interval(-3, 3, 40)],
    "box": [af.Interval(-3, 3, 14), af.Interval(-2, 4, 11)],
    "circle": [af.Circle(37)],
    "S2": [af.Icosphere(5)],
    "zonal": [af.Zonal(5, 30)],
    "masked": [af.Order(6), af.Interval(-3, 3, 12)],
    "graded": [Widening(3.0, 20)],
    "graded box": [Widening(3.0, 12), af.Interval(-2, 4, 11)],
    "masked graded": [af.Order(6), Widening(3.0, 12)],
}


def gauss(x):
    return jnp.exp(-jnp.sum(x**2, axis=1) / 2) / jnp.sqrt(2 * jnp.pi)


def test_an_axis_of_ones_own_flows_as_an_interval_does(key):
    r"""A normal law under $V = -1$, whose variance solves $S' = -2 \beta S^2$, on cells that widen outwards."""
    law = af.Attention(af.dot_product([[0.5]], [[1.0]]), [[-1.0]])
    graded = af.solve(law, af.Grid.from_density(gauss, [Widening(6.0, 120)], normalize=True), t1=1.0, save_at=[0.0, 1.0])
    assert float(graded.final.mass.sum()) == pytest.approx(1, abs=1e-13)
    assert float(graded.final.mass.min()) >= 0
    assert float(graded.final.cov[0, 0]) == pytest.approx(0.5, rel=5e-3)
    assert abs(float(graded.final.mean[0])) < 1e-12
    assert graded.to_xarray()["mass"].dims == ("time", "place")
    tokens = graded.final.sample(20_000, key=key)
    assert float(tokens.cov[0, 0]) == pytest.approx(float(graded.final.cov[0, 0]), rel=0.05)
    (again,) = axes_from(graded.measure.about["axes"])
    assert again == Widening(6.0, 120)


def test_an_axis_of_ones_own_takes_tokens_and_pushes_them(rng):
    cloud = af.Particles(rng.uniform(-2, 2, (50, 1)), weights=rng.uniform(size=50))
    mu = af.Grid.deposit(cloud, ALL["graded"])
    np.testing.assert_allclose(mu.mean, cloud.mean, atol=1e-13)
    np.testing.assert_allclose(mu.push(lambda x: 0.5 * x + 0.1).mean, 0.5 * cloud.mean + 0.1, atol=1e-13)
    # The distance of a density to its own quantiles is below a cell.
    assert float(af.wasserstein2(mu, mu.quantiles(400))) < mu.axes[0].width / 2
    with pytest.raises(ValueError, match=r"must lie in \[-3, 3\], got .* to 4; widen the Widening"):
        af.Grid.deposit(af.Particles([[0.0], [4.0]]), ALL["graded"])
    found = af.Grid.from_density(lambda x: jnp.exp(-(x**2)), ALL["graded"], normalize=True)
    np.testing.assert_allclose(found.density / found.density.max(), np.exp(-(found.points[:, 0] ** 2)) / np.exp(-(found.points**2)).max())


def test_faces_of_uneven_cells_stand_where_they_should(rng):
    """-div(rho v) of a constant density and v = x is -1 in every cell whose faces are in the middle of its neighbors."""
    where = mesh([af.Interval(-3, 3, 5), Widening(1.0, 400)])
    np.testing.assert_allclose(where.volumes.sum(), 12)
    rate = transport(where, where.volumes / 12, face_velocity(where, where.points * jnp.array([[0.0, 1.0]])))
    inner = np.abs(np.asarray(where.points[:, 1])) < 0.9
    np.testing.assert_allclose((rate / where.volumes)[inner], -1 / 12, rtol=1e-3)


def test_names_of_axes():
    assert af.Grid.uniform([Height(0, 1, 4)]).axis_names == ("height",)
    assert af.Grid.uniform(ALL["graded box"]).axis_names == ("place", "x")
    assert af.Grid.uniform([Widening(1.0, 4), Widening(1.0, 5)]).axis_names == ("place", "other")
    assert af.Grid.uniform(ALL["masked graded"]).axis_names == ("order", "place")
    for axes in ALL.values():
        assert axes_from(af.Grid.uniform(axes).about["axes"]) == axes
    with pytest.raises(
        TypeError, match=r"there is already an axis called Circle, in attnflow.measures.grid.intervals; choose another name"
    ):
        type("Circle", (Axis,), {})


# The engine of a sum over the cells: whether it is on the circle, and whether the first axis is the order.
LATTICES = {"line": (False, False), "box": (False, False), "circle": (True, False), "masked": (False, True)}


@pytest.mark.parametrize("name", ALL)
def test_a_grid_says_what_the_laws_ask(name):
    mu = af.Grid.uniform(ALL[name])
    assert mu.lattice == (Lattice(mu.mesh.shape, *LATTICES[name]) if name in LATTICES else None)
    assert mu.order_axis == (af.Order(6) if name.startswith("masked") else None)
    average = Plain(lambda x: x)
    assert isinstance(mu.around(average), AroundAxis) if name == "zonal" else mu.around(average) is average
    atoms = mu.atoms()
    assert len(atoms.points) == len(mu.points) * (32 if name == "zonal" else 1)
    assert atoms.engine == mu.lattice
    assert atoms.order is None
    assert float(jax.nn.logsumexp(atoms.log_weights)) == pytest.approx(0, abs=1e-12)
    if not name.startswith("masked"):
        with pytest.raises(ValueError, match="a mask needs the order of tokens, got a grid without"):
            mu.atoms(af.Causal())
        return
    np.testing.assert_array_equal(mu.atoms(ordered=True).order, mu.sequence)
    masked = mu.atoms(af.Window(0.25))
    assert masked.mask.width == 1 / 6
    np.testing.assert_array_equal(masked.order, mu.sequence)
    with pytest.raises(ValueError, match="a Window of width 3 is longer than the order"):
        mu.atoms(af.Window(3))
    mu.order_axis.check(jnp.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"order must lie in \[0, 1\], that of the grid, got 0 to 2"):
        mu.order_axis.check(jnp.array([0.0, 2.0]))


class ByRows(af.Explicit):
    by_rows: ClassVar[bool] = True


def test_laws_that_a_grid_cannot_carry():
    skew = np.diag([1.0, 2, 3])
    tilted, turning = (af.Attention(af.dot_product(Q, np.eye(3)), V) for Q, V in ((skew, np.eye(3)), (np.eye(3), skew)))
    sharp, plain = af.simple_attention(1e4, 3), af.simple_attention(1.0, 3)
    zonal, fine, sphere = (af.Grid.uniform([axis]) for axis in (af.Zonal(3, 40), af.Zonal(3, 40, nodes=400), af.Icosphere(4)))
    narrow = "is wider than the kernel, whose width is 0.01: the axis needs at least"
    for law, mu, said in (
        (tilted, zonal, r"a Zonal grid is for laws symmetric about the first axis, got K\^T Q that is not diag\(a, b, ..., b\)"),
        (turning, zonal, r"a Zonal grid is for laws symmetric about the first axis, got V that is not diag\(a, b, ..., b\)"),
        (sharp, zonal, f"^the gap of nodes {narrow} 315 nodes, got 32$"),
        (sharp, fine, f"^a cell {narrow} 315 cells, got 40$"),
        (sharp, sphere, f"^a cell {narrow} frequency 112, got 4$"),
    ):
        with pytest.raises(ValueError, match=said):
            mu.check_law(law)
        with pytest.raises(ValueError, match=said):
            law.at(mu)
    assert zonal.sharpest == pytest.approx((32 / np.pi) ** 2)
    assert fine.sharpest == pytest.approx((40 / np.pi) ** 2)
    assert af.Grid.uniform(ALL["masked"]).sharpest == pytest.approx(4)
    for law, mu in ((tilted, sphere), (plain, zonal)):
        mu.check_symmetry(law)
        mu.check_law(law)
    doubly = types.SimpleNamespace(logit=tilted.logit, value=tilted.value, mask=None, normalize=types.SimpleNamespace(doubly=True))
    with pytest.raises(ValueError, match=r"Sinkhorn has no zonal form here; use a Grid over \[af.Icosphere\(frequency\)\]"):
        zonal.check_law(doubly)
    sphere.check_law(doubly)
    masked = af.Grid.uniform(ALL["masked"])
    mask = ByRows(np.tri(3))
    with pytest.raises(ValueError, match="a mask matrix is for tokens, got a Grid; use Causal, Window or ALiBi on"):
        masked.atoms(mask)
    with pytest.raises(ValueError, match="a mask matrix is for tokens, got a Grid; use Causal, Window or ALiBi on"):
        masked.check_law(af.simple_attention(1.0, 1, mask=mask))


def test_averages_around_an_axis_turn_with_their_query(rng):
    """What the meridian knows is right everywhere, and the report of what is turned is passed on."""
    mu = af.Grid.uniform([af.Zonal(4, 60)])
    mu = mu.with_state(mu.mass * (1 + 0.5 * mu.points[:, 0]))
    atoms = mu.atoms()

    def average(x):
        weights = jax.nn.softmax(x @ atoms.points.T + atoms.log_weights[None], axis=1)
        return weights @ atoms.points

    turned = mu.around(Plain(average))
    x = af.Sphere().nearest(jnp.asarray(rng.normal(size=(5, 4))))
    np.testing.assert_allclose(turned(x), af.simple_attention(1.0, 4).at(mu)(x), atol=1e-12)
    assert turned.report == {}
