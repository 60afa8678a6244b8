"""The ellipsoid against closed forms, SciPy and an integrator of its own; steppers and noise on it."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from scipy.special import ellipeinc

import attnflow as af

AXES = (1.0, 2.0, 1.5)
SPACE = af.Ellipsoid(AXES)


def on(axes, rng, n=20):
    points = rng.normal(size=(n, len(axes)))
    return jnp.asarray(points / np.linalg.norm(points / np.asarray(axes), axis=1, keepdims=True))


def tangent(space, x, rng, size=1.0):
    v = space.project(x, jnp.asarray(rng.normal(size=x.shape)))
    return size * v / jnp.linalg.norm(v, axis=1, keepdims=True)


def followed(axes, x, v):
    """The end of the geodesic, by SciPy at tight tolerance."""
    axes, d = np.asarray(axes), len(axes)

    def rate(t, state):
        place, speed = state[:d], state[d:]
        n = place / axes**2
        return np.concatenate([speed, -(speed @ (speed / axes**2)) / (n @ n) * n])

    return solve_ivp(rate, (0, 1), np.concatenate([x, v]), method="DOP853", rtol=1e-13, atol=1e-14).y[:d, -1]


def test_projection_is_tangent_and_idempotent(rng):
    x, v = on(AXES, rng), jnp.asarray(rng.normal(size=(20, 3)))
    flat = SPACE.project(x, v)
    np.testing.assert_allclose(np.sum(flat * x / np.square(AXES)[None], axis=1), 0, atol=1e-14)
    np.testing.assert_allclose(SPACE.project(x, flat), flat, atol=1e-14)
    frames = SPACE.tangents(x)
    assert frames.shape == (20, 2, 3)
    np.testing.assert_allclose(np.einsum("nkd,nld->nkl", frames, frames), np.broadcast_to(np.eye(2), (20, 2, 2)), atol=1e-13)
    np.testing.assert_allclose(np.einsum("nkd,nke,ne->nd", frames, frames, v), flat, atol=1e-13)


@pytest.mark.parametrize("size", [1e-9, 0.3, 1.5, 1e6])
def test_the_nearest_point_is_that_of_scipy(size, rng):
    x = size * rng.normal(size=(5, 3))
    y = np.asarray(SPACE.nearest(jnp.asarray(x)))
    np.testing.assert_allclose(np.sum((y / AXES) ** 2, axis=1), 1, atol=1e-14)
    # What is left is normal, to round-off.
    np.testing.assert_allclose(SPACE.project(jnp.asarray(y), jnp.asarray(x - y)), 0, atol=1e-14 * max(size, 1))
    for point, found in zip(x, y):

        def away(angles, point=point):
            a, b = angles
            return np.linalg.norm(np.array([np.cos(a) * np.cos(b), np.sin(a) * np.cos(b), np.sin(b)]) * AXES - point) / max(size, 1)

        best = min(minimize(away, start).fun for start in [(0, 0), (2, 0.5), (4, -0.5), (1, 1.2), (3, -1)])
        assert np.linalg.norm(found - point) / max(size, 1) <= best * (1 + 1e-10)


def test_the_nearest_point_in_hard_places():
    # At the center, and on the axis across the shortest one, within its evolute, two points are nearest: one of them is found.
    x = jnp.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.9, 0.0], [1e-30, 1.0, 0.0]])
    y = np.asarray(SPACE.nearest(x))
    # y_2 = 4 / (4 - 1) and y_1 from the ellipse.
    inside = [np.sqrt(1 - (2 / 3) ** 2), 4 / 3, 0]
    np.testing.assert_allclose(np.abs(y), [[1, 0, 0], inside, [0, 2, 0], inside], atol=1e-14)


def test_the_nearest_point_has_derivatives_of_first_and_second_order(rng):
    x, v = jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=3))
    h = 1e-5
    first = (SPACE.nearest(x + h * v) - SPACE.nearest(x - h * v)) / (2 * h)
    np.testing.assert_allclose(jax.jvp(SPACE.nearest, (x,), (v,))[1], first, atol=1e-9)
    np.testing.assert_allclose(jax.jacrev(SPACE.nearest)(x) @ v, first, atol=1e-9)

    def slope(x):
        return jax.jvp(SPACE.nearest, (x,), (v,))[1]

    np.testing.assert_allclose(jax.jvp(slope, (x,), (v,))[1], (slope(x + h * v) - slope(x - h * v)) / (2 * h), atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_axes_are_a_sphere(dtype, rng):
    round_one, sphere = af.Ellipsoid((2.0, 2.0, 2.0)), af.Sphere(2.0)
    x, y = (2 * jnp.asarray(u / np.linalg.norm(u, axis=1, keepdims=True), dtype) for u in rng.normal(size=(2, 9, 3)))
    v = jnp.asarray(rng.normal(size=x.shape), dtype)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(round_one.project(x, v), sphere.project(x, v), atol=16 * eps)
    np.testing.assert_allclose(round_one.nearest(v), sphere.nearest(v), atol=16 * eps)
    v = sphere.project(x, v)
    np.testing.assert_allclose(round_one.exp(x, v), sphere.exp(x, v), atol=1e-9 if dtype == "float64" else 2e-5)
    np.testing.assert_allclose(round_one.distance(x, y), sphere.distance(x, y), rtol=1e-9 if dtype == "float64" else 1e-5)
    assert round_one.distance(x, y).dtype == round_one.exp(x, v).dtype == round_one.nearest(x).dtype == jnp.dtype(dtype)


@pytest.mark.parametrize("axes", [(1.0, 2.0), (5.0, 1.0)])
def test_on_an_ellipse_distance_is_the_arc_of_scipy(axes, rng):
    a, b = axes
    theta = rng.uniform(0, 2 * np.pi, size=(2, 40))
    x, y = (jnp.asarray(np.stack([a * np.cos(t), b * np.sin(t)], axis=1)) for t in theta)

    def along(t):
        return b * ellipeinc(t, 1 - (a / b) ** 2)

    one = np.abs(along(theta[0]) - along(theta[1]))
    expected = np.minimum(one, along(2 * np.pi) - one)
    np.testing.assert_allclose(af.Ellipsoid(axes).distance(x, y), expected, rtol=1e-11)
    # Close points keep their digits: the arc is the chord.
    near = x + 1e-9 * af.Ellipsoid(axes).project(x, jnp.ones_like(x))
    np.testing.assert_allclose(af.Ellipsoid(axes).distance(x, near), jnp.linalg.norm(near - x, axis=1), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize(("axes", "tolerance"), [(AXES, 1e-10), ((1.0, 1.0, 1.2), 1e-10), ((1.0, 2.0, 3.0, 1.5, 0.7), 1e-8)])
def test_geodesics_are_those_of_an_independent_integrator(axes, tolerance, rng):
    space, x = af.Ellipsoid(axes), on(axes, rng, 20)
    v = tangent(space, x, rng, 1.0)
    end = space.exp(x, v)
    expected = [followed(axes, *map(np.asarray, pair)) for pair in zip(x[:4], v[:4])]
    np.testing.assert_allclose(end[:4], expected, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(end) / axes, axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(space.distance(x, end), 1.0, rtol=tolerance)
    np.testing.assert_allclose(space.distance(end, x), space.distance(x, end), rtol=tolerance)


def test_no_geodesic_is_shorter_than_the_distance(rng):
    # Long ones pass others: the distance is at most their length, up to its stated error.
    x = on(AXES, rng, 60)
    for size in (3.0, 4.0):
        end = SPACE.exp(x, tangent(SPACE, x, rng, size))
        assert np.max(SPACE.distance(x, end)) <= size + 1e-6
    np.testing.assert_allclose(SPACE.distance(x, x), 0, atol=1e-15)
    near = SPACE.nearest(x + 1e-8 * tangent(SPACE, x, rng))
    np.testing.assert_allclose(SPACE.distance(x, near), jnp.linalg.norm(near - x, axis=1), rtol=1e-12)


@pytest.mark.long
def test_the_derivative_of_the_distance_is_the_direction_of_arrival(rng):
    x = on(AXES, rng, 4)
    v = tangent(SPACE, x, rng, 0.8)
    end = SPACE.exp(x, v)
    from_x, from_end = jax.grad(lambda x, y: SPACE.distance(x, y).sum(), argnums=(0, 1))(x, end)
    np.testing.assert_allclose(SPACE.project(x, from_x), -v / 0.8, atol=1e-7)
    np.testing.assert_allclose(jnp.linalg.norm(SPACE.project(end, from_end), axis=1), 1, atol=1e-7)
    assert not np.any(jax.grad(lambda y: SPACE.distance(x, y).sum())(x))
    assert np.isfinite(jax.grad(lambda v: SPACE.exp(x, v).sum())(jnp.zeros_like(x))).all()


def test_everything_is_compiled_and_vectorized(rng):
    x, v = on(AXES, rng, 4), jnp.asarray(rng.normal(size=(4, 3)))
    y = SPACE.nearest(v)
    for f in (SPACE.project, SPACE.exp, SPACE.distance):
        other = y if f == SPACE.distance else SPACE.project(x, v)
        np.testing.assert_allclose(jax.jit(jax.vmap(f))(x, other), f(x, other), atol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.vmap(SPACE.nearest))(v), y, atol=1e-14)


LAW = af.simple_attention(1.0, 3)


@pytest.mark.parametrize(("solver", "order"), [(diffrax.Euler(), 1), (diffrax.Heun(), 2), (diffrax.Tsit5(), 5)])
def test_steppers_keep_their_order_and_stay_on_the_ellipsoid(solver, order, rng):
    mu = af.Particles(on(AXES, rng, 8), space=SPACE)
    exact = af.solve(LAW, mu, 1.0, save_at=2, rtol=1e-12, atol=1e-13).final.points
    steps = (0.1, 0.05) if order > 2 else (0.05, 0.025)
    paths = [af.solve(LAW, mu, 1.0, save_at=2, solver=solver, step=step).final.points for step in steps]
    errors = [float(jnp.abs(points - exact).max()) for points in paths]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15 if order < 5 else 0.8)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(paths[0]) / AXES, axis=1), 1, atol=4e-16)


class Still(af.Field):
    """No drift."""

    def at(self, mu, t=0.0, sums=None):
        return af.Affine(jnp.zeros((mu.dim, mu.dim)), jnp.zeros(mu.dim))


def test_noise_spreads_like_brownian_motion_on_the_surface(key):
    n, sigma, dt = 20_000, 0.5, 1e-4
    start = np.broadcast_to([0.6, 1.6, 0.0], (n, 3))
    end = af.solve(Still(), af.Particles(start, space=SPACE), dt, save_at=2, noise=sigma, key=key, step=dt).final.points
    moved = np.asarray(end) - start
    # Two tangent directions; the square of a normal number has the variance 2, so the mean over 2n of them 1 / n relative.
    assert np.mean(np.sum(moved**2, axis=1)) / (2 * sigma**2 * dt) == pytest.approx(1, abs=5 / np.sqrt(n))


def test_noise_keeps_the_uniform_law_by_area(key):
    n, axes = 4000, (1.0, 2.0, 0.7)
    mu = af.samplers.ellipsoid(n, axes, key=key)
    # By quadrature: the area element at (a cos t sin s, ...) is that of the sphere times a b c |u / axes|.
    height, turn = np.meshgrid(np.linspace(-1, 1, 2001)[:-1] + 5e-4, np.linspace(0, 2 * np.pi, 400, endpoint=False))
    u = np.stack([np.sqrt(1 - height**2) * np.cos(turn), np.sqrt(1 - height**2) * np.sin(turn), height], axis=-1)
    area = np.linalg.norm(u / axes, axis=-1)
    squares = np.sum((u * axes) ** 2 * area[..., None], axis=(0, 1)) / area.sum()
    fourth = np.sum((u * axes) ** 4 * area[..., None], axis=(0, 1)) / area.sum()
    error = np.sqrt((fourth - squares**2) / n)
    np.testing.assert_array_less(np.abs(np.mean(np.asarray(mu.points) ** 2, axis=0) - squares), 4 * error)
    # A token goes about half of the way around; the order of the step in law is one.
    late = af.solve(Still(), mu, 2.0, save_at=2, noise=1.0, key=jax.random.fold_in(key, 1), step=0.02)
    np.testing.assert_array_less(np.abs(np.mean(np.asarray(late.final.points) ** 2, axis=0) - squares), 4 * error + 0.01)


def test_rms_normalization_with_a_gain_lands_on_the_ellipsoid(rng):
    gain = np.array([0.5, -2.0, 1.0, 3.0])
    tokens = af.RMSNorm(gain, epsilon=0.0)(jnp.asarray(rng.normal(size=(6, 4))))
    mu = af.Particles(tokens, space=af.Ellipsoid(np.sqrt(4) * np.abs(gain)))
    np.testing.assert_allclose(mu.points, tokens, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: af.Ellipsoid((1.0, 0.0)), r"axes\[1\] must be positive, got 0"),
        (lambda: af.Ellipsoid((1.0, -2.0)), r"axes\[1\] must be positive, got -2"),
        (lambda: af.Ellipsoid((1.0,)), "axes must be at least two positive numbers"),
        (lambda: af.Ellipsoid(2.0), "axes must be at least two positive numbers, one per coordinate, got 2"),
        (lambda: af.Ellipsoid("round"), "axes must be at least two positive numbers, one per coordinate, got 'round'"),
        (lambda: jax.jit(lambda a: af.Ellipsoid((1.0, a)).axes[1])(2.0), "got one that is traced; make the space outside"),
        (lambda: af.Particles(np.eye(2), space=SPACE), "an ellipsoid with 3 axes has points in R.3, got d = 2"),
        (lambda: af.Particles(np.eye(3), space=SPACE), r"\|x / axes\| = 1, got 0.5 in row 1; bring them there with space.nearest"),
        (lambda: af.samplers.ellipsoid(0, AXES, key=jax.random.key(0)), "n must be at least 1"),
        (
            lambda: af.order_parameter(af.samplers.ellipsoid(3, AXES, key=jax.random.key(0))),
            "on the sphere, got Particles on the Ellipsoid",
        ),
    ],
)
def test_bad_input_is_one_line_with_the_cure(make, says):
    with pytest.raises((ValueError, TypeError), match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_tokens_are_drawn_on_it(key):
    for axes in ((1.0, 2.0), AXES):
        ax = af.plot.tokens(af.samplers.ellipsoid(30, axes, key=key))
        assert ax.name == "rectilinear"
        outline = ax.patches[0].get_path().vertices
        reach = np.abs(outline).max()
        assert 0.9 < reach <= 2.0 + 1e-9
        # Every token is within the outline.
        places = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections if type(c).__name__ == "PathCollection"])
        assert len(places) == 30
        assert ax.patches[0].get_path().contains_points(0.999 * places).all()
