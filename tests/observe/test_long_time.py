"""Observables of long times against closed forms and brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.special import i0, i1

import attnflow as af
from attnflow.observe.clusters import _by_blocks, _by_cells, components

KEY = jax.random.key(0)


def sphere(rng, n, d):
    return af.samplers.sphere(n, d, key=jax.random.key(int(rng.integers(1 << 30))))


def same_parts(a, b):
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_components_are_those_of_the_graph(d, rng):
    for scale, reach in ((0.3, 0.05), (1.0, 0.2), (1.0, 0.6), (3.0, 1.0)):
        points = scale * rng.normal(size=(150, d))
        gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
        expected = connected_components(gaps <= reach)[1]
        ways = [components, _by_blocks, *([_by_cells] if d <= 3 else [])]
        for way in ways:
            assert same_parts(way(points, reach), expected)


def test_clusters_have_mass_size_and_center(rng):
    centers = np.eye(3)
    points = np.repeat(centers, [5, 3, 1], axis=0) + 1e-4 * rng.normal(size=(9, 3))
    mu = af.Particles(af.Sphere().nearest(jnp.asarray(points)), np.array([1, 1, 1, 1, 1, 4, 4, 4, 2]) / 19, space=af.Sphere())
    found = af.clusters(mu, 0.01)
    assert found.count == 3
    assert "3 clusters" in str(found)
    np.testing.assert_allclose(found.masses, [12 / 19, 5 / 19, 2 / 19], atol=1e-15)
    np.testing.assert_array_equal(found.sizes, [3, 5, 1])
    np.testing.assert_array_equal(found.labels, [1] * 5 + [0] * 3 + [2])
    np.testing.assert_allclose(found.centers, centers[[1, 0, 2]], atol=1e-3)
    # Along great circles: a quarter turn is pi/2, not the chord.
    assert af.clusters(mu, 1.5).count == 3
    assert af.clusters(mu, 1.58).count == 1
    assert af.clusters(mu, 0.01, floor=0.3).count == 2


def test_clusters_of_a_density():
    def density(x):
        return jnp.exp(40 * (jnp.cos(3 * jnp.arctan2(x[:, 1], x[:, 0])) - 1))

    axes = [af.Circle(300)]
    blank = af.Grid.uniform(axes)
    values = density(blank.points)
    mu = af.Grid(values / jnp.sum(values * blank.mesh.volumes), axes)
    found = af.clusters(mu, 0.05, floor=0.05)
    assert found.count == 3
    np.testing.assert_allclose(found.masses, found.masses[0], rtol=1e-10)


@pytest.mark.parametrize(("call", "words"), [
    (lambda mu: af.clusters(mu, 0.0), "radius must be positive"),
    (lambda mu: af.clusters(mu, 1.0, floor=1.0), "floor"),
    (lambda mu: af.order_parameter(mu, 2), "k must be"),
    (lambda mu: af.renyi_centers(mu, -1.0), "delta must be positive"),
    (lambda mu: af.lyapunov_exponents(af.simple_attention(1.0, 3), mu, 1.0, count=0, key=KEY), "count must be"),
    (lambda mu: af.cosine_histogram(mu, 0), "bins must be at least 1"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(call, words, rng):
    with pytest.raises(ValueError, match=words) as caught:
        call(sphere(rng, 4, 3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Unnormalized(-2.0)], ids=["SA", "USA"])
@pytest.mark.long
def test_energy_climbs_at_the_rate_of_the_dissipation(normalize, rng):
    beta, mu = 2.0, sphere(rng, 12, 3)
    law = af.simple_attention(beta, 3, normalize)

    def energy_after(t):
        velocity = law.at(mu)(mu.points)
        return af.energy(mu.with_state(mu.space.exp(mu.points, t * mu.space.project(mu.points, velocity))), beta)

    np.testing.assert_allclose(af.dissipation(law, mu), jax.grad(energy_after)(0.0), rtol=1e-10)


@pytest.mark.long
def test_entropy_of_attention_is_that_of_its_rows(rng):
    points, weights = rng.normal(size=(20, 3)), rng.dirichlet(np.ones(20))
    mu = af.Particles(points, weights)
    for logit in (af.dot_product(rng.normal(size=(3, 3)), np.eye(3)), af.squared_distance(np.eye(3), np.eye(3))):
        law = af.Attention(logit, np.eye(3))
        rows = np.asarray(law.weights(mu.points, mu))
        np.testing.assert_allclose(af.attention_entropy(law, mu), -(rows * np.log(rows)).sum(axis=1), rtol=1e-10)
        law = af.Attention(logit, np.eye(3), af.Unnormalized(-0.7))
        rows = np.asarray(law.weights(mu.points, mu))
        np.testing.assert_allclose(af.attention_entropy(law, mu), -(rows * np.log(rows)).sum(axis=1), rtol=1e-10)
    causal = af.Attention(af.dot_product(np.eye(3), np.eye(3)), np.eye(3), mask=af.Causal())
    assert float(af.attention_entropy(causal, af.Particles(points))[0]) == 0.0
    flat = af.Attention(af.dot_product(np.zeros((3, 3)), np.eye(3)), np.eye(3))
    np.testing.assert_allclose(af.attention_entropy(flat, af.Particles(points)), np.log(20), rtol=1e-12)


def test_order_parameters_count_clusters_on_the_circle():
    angles = 0.3 + 2 * np.pi * np.arange(3) / 3
    mu = af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), space=af.Sphere())
    found = [float(af.order_parameter(mu, k)) for k in range(1, 7)]
    np.testing.assert_allclose(found, [0, 0, 1, 0, 0, 1], atol=1e-14)
    assert float(af.mean_cosine(mu)) < 1e-28


def test_histogram_of_cosines_is_that_of_all_pairs(rng):
    mu = sphere(rng, 700, 3)
    found, edges = af.cosine_histogram(mu, 20)
    points = np.asarray(mu.points)
    pairs = (points @ points.T)[~np.eye(700, dtype=bool)]
    expected, _ = np.histogram(np.clip(pairs, -1, 1), edges)
    np.testing.assert_allclose(found, expected / len(pairs), atol=1e-12)
    # On S^2 the cosine of two uniform points is uniform.
    assert np.abs(np.asarray(found) - 0.05).max() < 0.01


def test_effective_rank_of_known_spectra(rng):
    assert float(af.effective_rank(af.Gaussian(np.zeros(3), np.eye(3)))) == pytest.approx(3)
    assert float(af.effective_rank(af.Gaussian(np.zeros(3), np.diag([1.0, 0, 0])))) == pytest.approx(1)
    p = np.array([0.5, 0.3, 0.2])
    assert float(af.effective_rank(af.Gaussian(np.zeros(3), np.diag(7 * p)))) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert float(af.effective_rank(af.Particles(np.ones((4, 2))))) == 0


@pytest.mark.long
def test_fisher_information_of_a_gaussian_in_three_pictures(key):
    s = 1.3
    exact = af.fisher_information(af.Gaussian([0.0], [[s**2]]))
    assert float(exact) == pytest.approx(1 / s**2)

    # On the circle `e^{k cos a} / (2 pi I_0(k))` has `k I_1(k) / I_0(k)`, and the sum over faces is second order.
    k = 2.0
    law = [af.Grid.from_density(lambda x: jnp.exp(k * x[:, 0]) / (2 * np.pi * i0(k)), [af.Circle(n)]) for n in (32, 64)]
    coarse, fine = (abs(float(af.fisher_information(mu)) - k * i1(k) / i0(k)) for mu in law)
    assert fine < 2e-3
    assert coarse / fine == pytest.approx(4, rel=0.1)
    # A kernel of width h adds h^2 to the variance.
    h = 0.5
    cloud = af.Particles(s * jax.random.normal(key, (4000, 1)))
    smooth = af.Particles(cloud.points)
    assert float(af.fisher_information(smooth, h)) == pytest.approx(s**2 / (s**2 + h**2) ** 2, rel=0.1)


@pytest.mark.long
def test_power_iteration_finds_the_largest_singular_value(rng):
    points = rng.normal(size=(6, 2))
    mu, law = af.Particles(points), af.Attention(af.dot_product(rng.normal(size=(2, 2)), np.eye(2)), rng.normal(size=(2, 2)))
    matrix = jax.jacfwd(lambda x: law.at(mu.with_state(x))(x))(mu.points).reshape(12, 12)
    expected = np.linalg.svd(np.asarray(matrix), compute_uv=False)[0]
    np.testing.assert_allclose(af.local_lipschitz(law, mu, iterations=500), expected, rtol=1e-5)
    radius = np.linalg.norm(points, axis=1).max()
    assert expected <= float(af.theory.lipschitz_bound(law.logit.A, law.value, radius, 6))


@pytest.mark.long
def test_linearization_of_two_clusters_is_known():
    # Two opposite tokens under SA: the angle u between them has u' = -2 p sin u, p = 1 / (1 + e^{b(1 - cos u)}); at pi it grows at 2p.
    beta = 1.5
    mu = af.Particles(np.array([[1.0, 0, 0], [-1.0, 0, 0]]), space=af.Sphere())
    values = af.linearization(af.simple_attention(beta, 3), mu)
    assert values.shape == (4,)
    rate = 2 / (1 + np.exp(2 * beta))
    np.testing.assert_allclose(np.asarray(values), [rate, rate, 0, 0], atol=1e-12)


def test_lyapunov_exponents_of_a_linear_field(key):
    V = np.diag([0.7, -0.2])
    field = af.Attention(af.dot_product(np.zeros((2, 2)), np.eye(2)), V)
    found = af.lyapunov_exponents(field, af.Particles(np.array([[0.3, -0.4]])), 40.0, steps=2000, count=2, key=key)
    np.testing.assert_allclose(found, [0.7, -0.2], atol=0.05)


def test_hemispheres_by_construction(rng):
    half = rng.normal(size=(30, 3))
    half[:, 0] = np.abs(half[:, 0]) + 1e-3
    assert af.in_hemisphere(af.Particles(af.Sphere().nearest(jnp.asarray(half)), space=af.Sphere()))
    both = np.concatenate([half, -half[:1]])
    assert not af.in_hemisphere(af.Particles(af.Sphere().nearest(jnp.asarray(both)), space=af.Sphere()))


def test_renyi_centers_against_the_definition(rng):
    mu = sphere(rng, 300, 2)
    angle = np.arccos(np.clip(np.asarray(mu.points @ mu.points.T), -1, 1))
    strong = [bool((angle[i, :i] > 0.4).all()) for i in range(300)]
    np.testing.assert_array_equal(af.renyi_centers(mu, 0.4, strong=True), strong)
    chosen: list[int] = []
    for i in range(300):
        if all(angle[i, j] > 0.4 for j in chosen):
            chosen.append(i)
    np.testing.assert_array_equal(np.flatnonzero(af.renyi_centers(mu, 0.4)), chosen)


def masked_rates(beta: float, order: np.ndarray, on_sphere: bool):
    """The velocity of causal softmax attention by explicit masked sums in NumPy, as a function of flat tokens of the plane."""

    def rates(flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(-1, 2)
        p = np.where(order[:, None] >= order[None], np.exp(beta * x @ x.T), 0)
        v = (p / p.sum(axis=1, keepdims=True)) @ x
        return (v - on_sphere * np.sum(v * x, axis=1, keepdims=True) * x).ravel()

    return rates


def differences(f, flat: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """The derivative of a function by central differences, column by column."""
    return np.stack([(f(flat + h * e) - f(flat - h * e)) / (2 * h) for e in np.eye(len(flat))], axis=1)


# The order of the tokens is not that of their rows.
ORDER = np.array([2.0, 0.0, 3.0, 1.0])


def test_the_lipschitz_constant_of_a_causal_law_is_of_masked_sums(rng):
    points = rng.normal(size=(4, 2))
    matrix = differences(masked_rates(1.5, ORDER, False), points.ravel())
    law, expected = af.simple_attention(1.5, 2, mask=af.Causal()), np.linalg.norm(matrix, 2)
    assert float(af.local_lipschitz(law, af.Particles(points, order=ORDER), iterations=400)) == pytest.approx(expected, rel=1e-5)
    free = float(af.local_lipschitz(af.simple_attention(1.5, 2), af.Particles(points), iterations=400))
    assert abs(free - expected) > 0.05 * expected, "the mask matters"


def test_the_linearization_of_a_causal_law_is_of_masked_sums():
    """Tokens at the first token's place or opposite to it stand still on the circle; coordinates are the angles along their tangents."""
    angle = np.array([0.0, 0.0, np.pi, np.pi]) + 0.3
    law, rates = af.simple_attention(1.5, 2, mask=af.Causal()), masked_rates(1.5, ORDER, True)

    def turning(a: np.ndarray) -> np.ndarray:
        v = rates(np.stack([np.cos(a), np.sin(a)], axis=1).ravel()).reshape(-1, 2)
        return -np.sin(a) * v[:, 0] + np.cos(a) * v[:, 1]

    np.testing.assert_allclose(turning(angle), 0, atol=1e-15)
    expected = np.sort(np.linalg.eigvals(differences(turning, angle)).real)[::-1]
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = np.asarray(af.linearization(law, af.Particles(points, order=ORDER, space=af.Sphere())))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert expected[0] > 0.04, "a saddle"


def test_the_lyapunov_exponents_of_a_causal_law_are_of_masked_sums(rng):
    """All together they are the growth of volumes under the whole flow, here by differences of Runge-Kutta steps in NumPy."""
    points, t1, steps = 0.5 * rng.normal(size=(4, 2)), 1.0, 20
    rates, h = masked_rates(1.5, ORDER, False), t1 / steps

    def flow(x: np.ndarray) -> np.ndarray:
        for _ in range(steps):
            k1 = rates(x)
            k2 = rates(x + h / 2 * k1)
            k3 = rates(x + h / 2 * k2)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + rates(x + h * k3))
        return x

    mu, law = af.Particles(points, order=ORDER), af.simple_attention(1.5, 2, mask=af.Causal())
    found = af.lyapunov_exponents(law, mu, t1, steps=steps, count=8, key=KEY)
    _, volume = np.linalg.slogdet(differences(flow, points.ravel()))
    assert float(jnp.sum(found)) == pytest.approx(volume / t1, rel=1e-6)
