"""What a space tells the rest of the library: its name and numbers, its tangents, its radius; spheres of any radius."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.spaces import Space, Surface, space_from


class Cylinder(Space):
    """The tube of a given radius along the last axis of R^3, with the four operations alone."""

    width: float = eqx.field(static=True, default=1.0)
    marks: tuple[float, ...] = eqx.field(static=True, default=(0.0,))

    def _normal(self, x):
        return x.at[..., -1].set(0) / self.width

    def project(self, x, v):
        n = self._normal(x)
        return v - jnp.sum(n * v, axis=-1, keepdims=True) * n

    def nearest(self, x):
        flat = x[..., :2]
        return jnp.concatenate([self.width * flat / jnp.linalg.norm(flat, axis=-1, keepdims=True), x[..., 2:]], axis=-1)

    def exp(self, x, v):
        return self.nearest(x + v)

    def distance(self, x, y):
        turn = af.Sphere(self.width).distance(x[..., :2], y[..., :2])
        return jnp.sqrt(turn**2 + (x[..., 2] - y[..., 2]) ** 2)

    def surface(self, dim):
        turn = np.linspace(0, 2 * np.pi, 50)
        ring = np.stack([self.width * np.cos(turn), self.width * np.sin(turn), 0 * turn], axis=1)
        return Surface(np.stack([ring + np.array([[0, 0, h]]) for h in (-1, 1)], axis=1))


@pytest.mark.parametrize(
    "space", [af.Euclidean(), af.Sphere(), af.Sphere(2.5), af.Ellipsoid((1.0, 0.1 + 0.2)), Cylinder(), Cylinder(2.0, (1.0, 2.0))]
)
def test_a_space_is_stored_as_data_and_read_back(space):
    text = json.dumps(space.about)
    back = space_from(json.loads(text))
    assert type(back) is type(space)
    assert back == space
    assert hash(back) == hash(space)


def test_a_name_alone_has_the_default_numbers_and_an_unknown_one_is_refused():
    assert space_from("Sphere") == af.Sphere()
    with pytest.raises(ValueError, match="got 'Spere'; did you mean 'Sphere'"):
        space_from("Spere")
    with pytest.raises(ValueError, match="got 'Hyperbolic'; import the module that defines it first"):
        space_from({"name": "Hyperbolic", "numbers": {}})
    with pytest.raises(TypeError, match="there is a space called 'Sphere' in attnflow"):
        type("Sphere", (Space,), {})


def test_numbers_that_are_no_data_are_refused():
    class Strange(Cylinder):
        f: object = eqx.field(static=True, default=len)

    with pytest.raises(TypeError, match="a file holds the numbers of a space, got the function len as its f"):
        _ = Strange().about


def test_a_space_of_four_operations_does_what_others_do(rng):
    space = Cylinder(2.0)
    points = space.nearest(jnp.asarray(rng.normal(size=(6, 3))))
    mu = af.Particles(points, space=space)
    assert space.dimension(3) == 2
    frames = jax.jit(space.tangents)(points)
    np.testing.assert_allclose(jnp.einsum("nkd,nd->nk", frames, space._normal(points)), 0, atol=1e-14)
    path = af.solve(af.simple_attention(1.0, 3), mu, 1.0, save_at=3)
    np.testing.assert_allclose(jnp.linalg.norm(path.final.points[:, :2], axis=1), 2, atol=1e-14)
    assert af.clusters(mu, 100.0).count == 1
    assert af.linearization(af.simple_attention(1.0, 3), mu).shape == (12,)
    ax = af.plot.tokens(mu)
    assert ax.name == "3d"
    assert len(ax.lines) == 2
    with pytest.raises(ValueError, match=r"points must lie on the Cylinder, got one 0\.333 off in row 0; give space\.nearest"):
        af.Particles([[3.0, 0.0, 0.0]], space=space)
    with pytest.raises(TypeError, match="got Particles on the Cylinder"):
        af.log_density(mu, points, 0.1)


def unit(rng, n, d):
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("radius", [1e-3, 2.0, 1e4])
def test_a_sphere_of_any_radius_is_the_unit_sphere_scaled(radius, rng):
    x, y = jnp.asarray(unit(rng, 20, 3)), jnp.asarray(unit(rng, 20, 3))
    v = jnp.asarray(rng.normal(size=x.shape))
    one, big = af.Sphere(), af.Sphere(radius)
    pairs = [
        (big.project(radius * x, v), one.project(x, v)),
        (big.nearest(v) / radius, one.nearest(v)),
        (big.exp(radius * x, radius * v) / radius, one.exp(x, v)),
        (big.retract(radius * x, radius * v) / radius, one.retract(x, v)),
        (big.distance(radius * x, radius * y) / radius, one.distance(x, y)),
    ]
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-13)
    mu, nu = af.Particles(radius * x, space=big), af.Particles(x, space=one)
    for observable in (af.order_parameter, af.mean_cosine, lambda m: af.cosine_histogram(m, 8)[0]):
        np.testing.assert_allclose(observable(mu), observable(nu), atol=1e-13)
    np.testing.assert_array_equal(af.renyi_centers(mu, 0.7), af.renyi_centers(nu, 0.7))
    some, same = af.clusters(mu, 0.5 * radius), af.clusters(nu, 0.5)
    np.testing.assert_array_equal(some.labels, same.labels)
    np.testing.assert_allclose(some.centers / radius, same.centers, atol=1e-13)
    assert af.in_hemisphere(mu) == af.in_hemisphere(nu)


def test_attention_on_a_larger_sphere_is_that_at_another_temperature(rng):
    # With x = r u: u' = P average of u under r^2 beta <u, u>.
    x, law, warm = unit(rng, 8, 3), af.simple_attention(0.5, 3), af.simple_attention(2.0, 3)
    big = af.solve(law, af.Particles(2 * x, space=af.Sphere(2.0)), 2.0, save_at=3)
    one = af.solve(warm, af.Particles(x, space=af.Sphere()), 2.0, save_at=3)
    np.testing.assert_allclose(big.states / 2, one.states, atol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(big.final.points, axis=1), 2, atol=1e-15)


def test_a_sweep_on_a_larger_circle_is_no_sweep_on_the_unit_circle():
    def on(radius):
        def make(key, beta):
            mu = af.samplers.sphere(6, 2, key=key, radius=radius)
            return af.simple_attention(beta / radius**2, 2), mu

        return af.sweep(make, {"beta": [2.0]}, 1, 1.0, observe={"order": af.order_parameter})

    np.testing.assert_allclose(on(2.0)["order"], on(1.0)["order"], atol=1e-6)


def test_the_unit_sphere_compiles_no_radius():
    x = jnp.eye(3)
    for f in (lambda s: s.project(x, x), lambda s: s.nearest(x), lambda s: s.exp(x, x), lambda s: s.distance(x, x)):
        one, two = (len(str(jax.make_jaxpr(lambda f=f, s=s: f(s))()).splitlines()) for s in (af.Sphere(), af.Sphere(2.0)))
        assert one < two


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: af.Sphere(0.0), "radius must be positive, got 0"),
        (lambda: af.Sphere("big"), "radius must be a number, got 'big'"),
        (lambda: af.Particles(np.eye(3), space=af.Sphere(2.0)), r"sphere of radius 2, got norm 1 in row 0; .* af.Sphere\(2.0\).nearest"),
        (lambda: af.staircase(af.simple_attention(1.0, 3), af.Particles(2 * np.eye(3), space=af.Sphere(2.0))), r"beta \* radius\*\*2"),
        (
            lambda: af.Grid.deposit(af.Particles(2 * np.eye(2), space=af.Sphere(2.0)), [af.Circle(8)]),
            "got tokens of R.2 on the Sphere of radius 2",
        ),
    ],
)
def test_what_is_of_the_unit_sphere_alone_refuses_others(make, says):
    with pytest.raises((ValueError, TypeError), match=says):
        make()


def test_a_larger_sphere_is_sampled_and_drawn(key):
    mu = af.samplers.sphere(50, 3, key=key, radius=3.0)
    np.testing.assert_allclose(jnp.linalg.norm(mu.points, axis=1), 3, rtol=1e-14)
    ax = af.plot.tokens(mu)
    np.testing.assert_allclose(ax.get_xlim(), (-3.12, 3.12), rtol=1e-6)
