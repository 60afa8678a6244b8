"""Token flows: the scalar laws of the sphere, SciPy, orders of the steppers (GT 1, 2, 3, 16)."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import attnflow as af


def equiangular_by_scipy(n, beta, times, kind):
    def rate(t, g):
        if kind == "softmax":
            return 2 * np.exp(beta * g) * (1 - g) * ((n - 1) * g + 1) / (np.exp(beta) + (n - 1) * np.exp(beta * g))
        return 2 / n * np.exp(beta * g) * (1 - g) * ((n - 1) * g + 1)

    return solve_ivp(rate, (0, times[-1]), [0.0], method="DOP853", t_eval=times, rtol=1e-12, atol=1e-13).y[0]


@pytest.mark.parametrize("kind", ["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
@pytest.mark.long
def test_orthonormal_tokens_follow_the_scalar_equation(key, kind, beta):
    n, times = 8, np.linspace(0, 3.0, 13)
    law = af.simple_attention(beta, n, af.Softmax() if kind == "softmax" else af.Unnormalized())
    path = af.solve(law, af.samplers.orthonormal(n, n, key=key), t1=3.0, save_at=times, rtol=1e-10, atol=1e-12)
    grams = np.einsum("tid,tjd->tij", path.states, path.states)
    cosines = grams[:, *np.triu_indices(n, 1)]
    expected = equiangular_by_scipy(n, beta, times, kind)
    np.testing.assert_allclose(cosines, np.broadcast_to(expected[:, None], cosines.shape), atol=1e-9)
    np.testing.assert_allclose(af.theory.equiangular(n, beta, times, kind=kind), expected, atol=1e-10)
    if beta == 0 and kind == "softmax":
        np.testing.assert_allclose(expected, (np.exp(2 * times) - 1) / (np.exp(2 * times) + n - 1), atol=1e-10)


@pytest.mark.parametrize(("kind", "beta", "rate"), [("softmax", 1.0, 2.0), ("softmax", 3.0, 2.0), ("unnormalized", 1.0, 2 * np.e)])
@pytest.mark.long
def test_terminal_rates(key, kind, beta, rate):
    law = af.simple_attention(beta, 4, af.Softmax() if kind == "softmax" else af.Unnormalized())
    end = 14.0 / rate + 2.0
    path = af.solve(law, af.samplers.orthonormal(4, 4, key=key), t1=end, save_at=200, rtol=1e-11, atol=1e-14)
    x = np.asarray(path.states)
    gap = 0.5 * ((x[:, 0] - x[:, 1]) ** 2).sum(-1)  # 1 - cosine, without cancellation
    late = (gap < 1e-3) & (gap > 1e-7)
    assert np.polyfit(np.asarray(path.ts)[late], np.log(gap[late]), 1)[0] == pytest.approx(-rate, rel=2e-3)


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Unnormalized()])
def test_the_simplex_is_stationary(normalize):
    simplex = np.eye(4) - 0.25
    mu = af.Particles(simplex / np.linalg.norm(simplex, axis=1, keepdims=True), space=af.Sphere())
    np.testing.assert_allclose(mu.rate(af.simple_attention(3.0, 4, normalize).at(mu)), 0, atol=1e-13)


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Unnormalized(-4.0)], ids=["SA", "USA"])
@pytest.mark.long
def test_energy_never_decreases(key, normalize):
    mu = af.samplers.sphere(40, 3, key=key)
    path = af.solve(af.simple_attention(4.0, 3, normalize), mu, t1=20.0, save_at=150)
    energies = np.array([float(af.energy(frame, 4.0)) for frame in path])
    assert np.diff(energies).min() > -1e-7 * energies[-1]
    assert energies[-1] > 1.5 * energies[0]


def test_usa_is_the_gradient_ascent_of_the_energy(key):
    mu = af.samplers.sphere(10, 3, key=key)
    gradient = jax.grad(lambda points: af.energy(mu.with_state(points), 2.0))(mu.points)
    # The Wasserstein gradient is n times the gradient in the tokens.
    expected = mu.space.project(mu.points, 10 * gradient)
    np.testing.assert_allclose(mu.rate(af.simple_attention(2.0, 3, af.Unnormalized()).at(mu)), expected, atol=1e-12)


def test_energy_of_the_sphere_is_the_functional_of_the_gaussian_kernel(key):
    """GT 3: F = 1/2 sum e^{-b/2 |x-y|^2} = b e^{-b} n^2 E."""
    mu, beta = af.samplers.sphere(12, 3, key=key), 2.5
    x = np.asarray(mu.points)
    F = 0.5 * np.exp(-beta / 2 * ((x[:, None] - x[None]) ** 2).sum(-1)).sum()
    np.testing.assert_allclose(beta * np.exp(-beta) * 144 * float(af.energy(mu, beta)), F, rtol=1e-12)
    np.testing.assert_allclose(beta * 144 * float(af.energy(mu, beta, log_scale=-beta)), F, rtol=1e-12)


@pytest.mark.parametrize("space", ["plane", "sphere"])
@pytest.mark.cases
def test_against_scipy(rng, space):
    Q, K, V = rng.normal(size=(3, 3, 3)) * 0.6
    points = rng.normal(size=(9, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)

    def rate(t, flat):
        x = flat.reshape(9, 3)
        p = np.exp((x @ Q.T) @ (x @ K.T).T)
        v = (p / p.sum(1, keepdims=True)) @ x @ V.T
        return (v - (v * x).sum(1, keepdims=True) * x * (space == "sphere")).ravel()

    expected = solve_ivp(rate, (0, 4.0), points.ravel(), method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1].reshape(9, 3)
    mu = af.Particles(points, space=af.Sphere() if space == "sphere" else af.Euclidean())
    path = af.solve(af.Attention(af.dot_product(Q, K), V), mu, t1=4.0, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(path.final.points, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("space", ["plane", "sphere"])
@pytest.mark.parametrize(("solver", "order", "steps"), [(diffrax.Heun(), 2, (20, 40, 80, 160)), (diffrax.Tsit5(), 5, (16, 22, 32, 45))])
@pytest.mark.long
def test_order_of_the_steppers(rng, key, space, solver, order, steps):
    mu = af.samplers.sphere(12, 3, key=key)
    if space == "plane":
        mu = af.Particles(mu.points)
    law = af.Attention(af.dot_product(np.eye(3), np.eye(3)), 0.5 * np.eye(3) + 0.2 * rng.normal(size=(3, 3)))
    exact = af.solve(law, mu, t1=1.5, save_at=2, rtol=1e-13, atol=1e-14).final.points
    errors = [float(jnp.abs(af.solve(law, mu, t1=1.5, save_at=1, solver=solver, step=1.5 / k).final.points - exact).max()) for k in steps]
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert slope == pytest.approx(order, abs=0.25)


def test_saved_frames_stay_on_the_sphere(key):
    mu = af.samplers.sphere(30, 3, key=key)
    path = af.solve(af.simple_attention(5.0, 3), mu, t1=10.0, save_at=333, rtol=1e-3, atol=1e-3)
    assert np.abs(np.linalg.norm(path.states, axis=-1) - 1).max() < 1e-15


def test_frames_between_steps_are_as_good_as_steps(key):
    mu = af.samplers.sphere(10, 3, key=key)
    law = af.simple_attention(2.0, 3)
    loose, tight = (af.solve(law, mu, t1=3.0, save_at=61, rtol=tol, atol=tol) for tol in (1e-6, 1e-12))
    assert np.abs(loose.states - tight.states).max() < 3e-5


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Sinkhorn(tolerance=1e-8), af.Hardmax()], ids=["softmax", "sinkhorn", "hardmax"])
@pytest.mark.parametrize("logit", [af.dot_product, af.squared_distance])
@pytest.mark.cases
def test_support_grows_at_most_exponentially(rng, normalize, logit):
    """GT 16: R(t) <= e^{|V| t} R(0) for normalized weights."""
    Q, K, V = rng.normal(size=(3, 2, 2))
    mu = af.Particles(rng.normal(size=(12, 2)))
    path = af.solve(af.Attention(logit(Q, K), V, normalize), mu, t1=0.6, save_at=7, solver=diffrax.Heun(), step=0.02)
    radii = np.linalg.norm(path.states, axis=-1).max(1)
    bound = radii[0] * np.exp(np.linalg.norm(V, 2) * np.asarray(path.ts))
    assert (radii <= bound * (1 + 1e-4)).all()


@pytest.mark.parametrize("normalize", [af.Unnormalized(), af.Linear()])
@pytest.mark.cases
@pytest.mark.long
def test_laws_without_normalized_weights_break_the_bound(normalize):
    mu = af.Particles(np.array([[2.0, 0.0], [0.0, 2.0], [1.5, 1.5]]))
    path = af.solve(af.simple_attention(1.0, 2, normalize), mu, t1=0.05, save_at=3)
    radii = np.linalg.norm(path.states, axis=-1).max(1)
    assert radii[-1] > radii[0] * np.exp(float(path.ts[-1]))


@pytest.mark.long
def test_gradients_of_a_flow_against_finite_differences(rng):
    matrices, directions = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2, 2))
    points = jnp.asarray(rng.normal(size=(6, 2)))

    def loss(Q, K, V, normalize):
        law = af.Attention(af.dot_product(Q, K), V, normalize)
        # A short fixed grid: the derivative of the discrete flow is exact, and compiles in a third of the time.
        path = af.solve(law, af.Particles(points), t1=0.7, save_at=3, solver=diffrax.Heun(), step=0.1)
        return jnp.sum(jnp.sin(path.final.points))

    matrices *= 0.5
    for normalize in (af.Softmax(), af.Sinkhorn(tolerance=1e-12)):
        gradients = jax.grad(loss, argnums=(0, 1, 2))(*map(jnp.asarray, matrices), normalize)
        for which in range(3):
            h = 1e-5
            ahead, back = matrices.copy(), matrices.copy()
            ahead[which] += h * directions[which]
            back[which] -= h * directions[which]
            numeric = (loss(*ahead, normalize) - loss(*back, normalize)) / (2 * h)
            np.testing.assert_allclose(np.sum(gradients[which] * directions[which]), numeric, rtol=2e-6)


@pytest.mark.long
def test_gradient_on_the_sphere_in_beta_and_the_start(key):
    start = af.samplers.sphere(6, 3, key=key)

    def loss(beta, points):
        mu = af.Particles(points, space=af.Sphere())
        return jnp.sum(af.solve(af.simple_attention(beta, 3), mu, t1=1.0, save_at=1, rtol=1e-10, atol=1e-11).final.points ** 3)

    by_beta, by_points = jax.grad(loss, argnums=(0, 1))(2.0, start.points)
    h = 1e-5
    np.testing.assert_allclose(by_beta, (loss(2.0 + h, start.points) - loss(2.0 - h, start.points)) / (2 * h), rtol=1e-6)
    v = start.space.project(start.points, jnp.ones_like(start.points))
    moved = [loss(2.0, start.space.exp(start.points, s * h * v)) for s in (1, -1)]
    np.testing.assert_allclose(jnp.vdot(by_points, v), (moved[0] - moved[1]) / (2 * h), rtol=1e-6)


def test_a_user_field_that_depends_on_time():
    class Breathing(eqx.Module):
        rate: jax.Array

        def at(self, mu, t=0.0, sums=None):
            return lambda x: self.rate * jnp.cos(t) * x

    path = af.solve(Breathing(jnp.asarray(0.5)), af.Particles([[1.0], [2.0]]), t1=3.0, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(path.states[:, 0, 0], np.exp(0.5 * np.sin(np.asarray(path.ts))), rtol=1e-8)


@pytest.mark.long
def test_streamed_and_dense_runs_agree(key):
    mu = af.samplers.sphere(50, 3, key=key)
    dense, streamed = (af.solve(af.simple_attention(3.0, 3), mu, t1=2.0, save_at=2, sums=s) for s in (af.Dense(), af.Streamed(16, 8)))
    np.testing.assert_allclose(dense.final.points, streamed.final.points, atol=1e-9)
    assert "Streamed" in streamed.stats["engine"]


@pytest.mark.long
def test_single_precision_stays_single(key):
    mu = af.samplers.sphere(20, 3, key=key, dtype=jnp.float32)
    path = af.solve(af.simple_attention(3.0, 3), mu, t1=5.0)
    assert path.states.dtype == jnp.float32
    assert path.status.kind == "reached"
    double = af.solve(af.simple_attention(3.0, 3), af.Particles(np.asarray(mu.points, float), space=af.Sphere()), t1=5.0)
    np.testing.assert_allclose(path.states, double.states, atol=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("normalize", [af.Softmax(), af.Sinkhorn()], ids=["softmax", "sinkhorn"])
def test_flows_at_the_edge_of_what_is_ordinary(normalize):
    """beta = 1e6 with coincident tokens, a single token, and one token with all the weight: finite, and right."""
    corners = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    cold = af.solve(af.simple_attention(1e6, 2, normalize), af.Particles(corners, space=af.Sphere()), t1=1.0, save_at=2)
    np.testing.assert_allclose(cold.final.points, corners, atol=1e-9)
    single = af.solve(af.simple_attention(2.0, 2, normalize), af.Particles(corners[2:3], space=af.Sphere()), t1=1.0, save_at=2)
    np.testing.assert_allclose(single.final.points, corners[2:3], atol=1e-12)
    heavy = af.solve(af.simple_attention(1.0, 2, normalize), af.Particles(corners[1:3], [1.0, 0.0], space=af.Sphere()), t1=1.0, save_at=2)
    np.testing.assert_allclose(heavy.final.points[0], corners[1], atol=1e-9)
    # A token without mass is drawn to the one that has it: the angle a obeys a' = -sin a, so tan(a/2) falls like e^-t.
    angle = np.arccos(float(heavy.final.points[1] @ corners[1]))
    np.testing.assert_allclose(np.tan(angle / 2), np.exp(-1.0), rtol=1e-6)
