"""A mixture of Gaussians as a state of the solver: attention over it against quadrature, its closure against tokens."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import attnflow as af
from attnflow.measures.gaussians.merging import merged


def hermite(dim: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    z, q = np.polynomial.hermite_e.hermegauss(nodes)
    grids = np.meshgrid(*[z] * dim, indexing="ij"), np.meshgrid(*[q / q.sum()] * dim, indexing="ij")
    return np.stack(grids[0], axis=-1).reshape(-1, dim), np.prod(grids[1], axis=0).ravel()


def tokens_of(mu: af.GaussianMixture, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite tokens `[k, m, d]` of every component, by the eigenvectors of its covariance, and the weights `[m]` of one."""
    z, q = hermite(mu.dim, nodes)
    values, vectors = np.linalg.eigh(np.asarray(mu.covs))
    roots = vectors * np.sqrt(np.maximum(values, 0))[:, None]
    return np.asarray(mu.means)[:, None] + np.einsum("mj,kij->kmi", z, roots), q


def cloud_of(mu: af.GaussianMixture, nodes: int) -> af.Particles:
    points, q = tokens_of(mu, nodes)
    weights = np.asarray(mu.weights)[:, None] * q[None]
    keep = weights.ravel() > 1e-20
    return af.Particles(points.reshape(-1, mu.dim)[keep], weights=weights.ravel()[keep])


def some(dim: int, singular: bool = False) -> af.GaussianMixture:
    rng = np.random.default_rng(dim)
    factors = rng.normal(size=(3, dim, dim)) * 0.5 / np.sqrt(dim)
    means, covs = rng.normal(size=(3, dim)), factors @ factors.transpose(0, 2, 1) + 0.05 * np.eye(dim)
    mu = af.GaussianMixture([1.0, 2.0, 3.0], means, covs)
    if not singular:
        return mu
    flat = np.asarray(covs).copy()
    flat[0] = 0
    flat[1] = np.outer(factors[1, 0], factors[1, 0])
    return mu.with_state((jnp.asarray(means), jnp.asarray(flat)))


def drawn(dim: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, dim, dim)) * 0.6 / np.sqrt(dim)


def logits(dim: int) -> dict:
    Q, K, _, _ = drawn(dim)
    a, b = np.random.default_rng(3).normal(size=(2, dim)) * 0.5
    return {
        "dot": af.dot_product(Q, K),
        "biases": af.dot_product(Q, K, 0.7, query_bias=a, key_bias=b),
        "L2": af.squared_distance(Q, K, 0.8),
    }


@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_tilts_against_quadrature(dim, singular, rng):
    """log Z and means from the integrals themselves: exp of the logit, summed over Gauss-Hermite nodes of each component."""
    mu, x = some(dim, singular), rng.normal(size=(6, dim))
    points, q = tokens_of(mu, {1: 90, 2: 64, 3: 64}[dim])
    weights = (np.asarray(mu.weights)[:, None] * q[None]).ravel()
    y = points.reshape(-1, dim)
    for name, logit in logits(dim).items():
        form = logit.form
        kernel = np.asarray(y @ form.A @ x.T)
        for part, sign, at in ((form.P, -0.5, y), (form.R, -0.5, x)):
            if part is not None:
                term = sign * np.einsum("ni,ij,nj->n", at, np.asarray(part), at)
                kernel = kernel + (term[:, None] if at is y else term[None])
        for part, at in ((form.p, y), (form.r, x)):
            if part is not None:
                term = at @ np.asarray(part)
                kernel = kernel + (term[:, None] if at is y else term[None])
        kernel = np.exp(kernel + (0 if form.constant is None else float(form.constant))) * weights[:, None]
        norm = kernel.sum(axis=0)
        log_norm, mean = mu.tilt(logit)(jnp.asarray(x))
        np.testing.assert_allclose(log_norm, np.log(norm), rtol=1e-12, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(mean, (kernel.T @ y) / norm[:, None], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("dim", [1, 2])
def test_laws_against_tokens_of_a_rule(dim, rng):
    """The whole law, value and normalization, as sums over weighted tokens see it."""
    mu, x = some(dim), jnp.asarray(rng.normal(size=(5, dim)))
    cloud = cloud_of(mu, 60 if dim == 1 else 40)
    V = drawn(dim)[2]
    for logit in logits(dim).values():
        for normalize in (af.Softmax(), af.Unnormalized(), af.Unnormalized(-1.0)):
            for value in (V, (V, drawn(dim)[3], np.ones(dim))):
                law = af.Attention(logit, value, normalize)
                np.testing.assert_allclose(law.at(mu)(x), law.at(cloud)(x), rtol=1e-11, atol=1e-11)


def softmax(beta, dim):
    return af.simple_attention(beta, dim)


def l2(beta, dim):
    eye = np.eye(dim)
    return af.Attention(af.squared_distance(eye, eye, 2 / beta), -0.5 * eye)


@pytest.mark.parametrize("make", [softmax, l2])
def test_one_component_is_the_gaussian_picture(make):
    mean, cov = np.array([0.3, -0.2]), np.array([[0.3, 0.1], [0.1, 0.2]])
    law = make(1.0, 2)
    mu = af.GaussianMixture([1.0], mean[None], cov[None])
    one, gaussian = (af.solve(law, start, 1.0, save_at=5) for start in (mu, af.Gaussian(mean, cov)))
    np.testing.assert_allclose(one.states[0][:, 0], gaussian.states[0], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(one.states[1][:, 0], gaussian.states[1], rtol=1e-7, atol=1e-8)
    assert one.stats["closure"]["residual"] < 1e-13
    one, gaussian = (af.layers(law, start, 4, step=0.1) for start in (mu, af.Gaussian(mean, cov)))
    np.testing.assert_allclose(one.states[1][:, 0], gaussian.states[1], rtol=1e-12, atol=1e-14)
    one, gaussian = (af.solve(law, start, 0.5, save_at=2, noise=0.4) for start in (mu, af.Gaussian(mean, cov)))
    np.testing.assert_allclose(one.final.covs[0], gaussian.final.cov, rtol=1e-6, atol=1e-8)


def moments(points: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of each component from its own tokens `[k, m, d]`."""
    means = np.einsum("m,kmd->kd", q, points)
    apart = points - means[:, None]
    return means, np.einsum("m,kmi,kmj->kij", q, apart, apart)


def flown(law, mu: af.GaussianMixture, t1: float, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The moments of the components after the flow, each followed by tokens of its own."""
    points, q = tokens_of(mu, nodes)
    cloud = af.Particles(points.reshape(-1, mu.dim), weights=(np.asarray(mu.weights)[:, None] * q[None]).ravel())
    final = af.solve(law, cloud, t1, save_at=2).final.points
    return moments(np.asarray(final).reshape(points.shape), q)


def test_components_far_apart_against_tokens():
    """Each component moves as tokens do: within 1e-6, where responsibilities are one up to e^-50 and the velocity is affine on each."""
    covs = [[[0.05, 0.02], [0.02, 0.08]], 0.04 * np.eye(2), 0.06 * np.eye(2)]
    mu = af.GaussianMixture([1.0, 1.0, 2.0], [[5.0, 0.0], [-4.0, 4.0], [-3.0, -5.0]], covs)
    law = af.Attention(af.squared_distance(np.eye(2), np.eye(2)), -np.eye(2) + 0.5 * np.array([[0, -1], [1, 0]]))
    final, (means, covs) = af.solve(law, mu, 0.4, save_at=2).final, flown(law, mu, 0.4, 7)
    np.testing.assert_allclose(final.means, means, atol=1e-6)
    np.testing.assert_allclose(final.covs, covs, atol=1e-6)


@pytest.mark.long
def test_the_closure_is_worst_where_responsibilities_change_inside_a_component():
    """Two components of standard deviation 1/2, flown to t = 0.3: exact in one place (they are one Gaussian), as good as exact far apart
    (each sees itself alone), and worst between."""
    law, errors, residuals = af.simple_attention(1.0, 1), [], []
    for apart in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0):
        mu = af.GaussianMixture([0.5, 0.5], [[-apart / 2], [apart / 2]], 0.25 * np.ones((2, 1, 1)))
        path, (means, covs) = af.solve(law, mu, 0.3, save_at=2), flown(law, mu, 0.3, 50)
        relative = np.abs(path.final.covs - covs) / covs
        errors.append(max(np.abs(path.final.means - means).max(), relative.max()))
        residuals.append(path.stats["closure"]["residual"])
    np.testing.assert_array_less(errors[0], 1e-7)
    assert np.all(np.diff(errors[:4]) > 0)
    assert np.all(np.diff(errors[4:]) < 0)
    assert 0.03 < max(errors) < 0.06
    assert errors[-1] < 1e-5
    # The figure of the run says so before anything is compared.
    assert 2 <= np.argmax(residuals) <= 4
    assert residuals[0] < 1e-13
    assert 0.02 < max(residuals) < 0.1
    assert residuals[-1] < 1e-6


class Linear(af.Field):
    matrix: jax.Array
    offset: jax.Array

    def at(self, mu, t=0.0, sums=None):
        return af.Affine(self.matrix, self.offset)


def test_affine_velocities_and_maps_are_exact(rng):
    M, b, mu = jnp.asarray(rng.normal(size=(3, 3)) * 0.5), jnp.asarray(rng.normal(size=3)), some(3, singular=True)
    means, covs = mu.rate(af.Affine(M, b))
    np.testing.assert_allclose(means, mu.means @ M.T + b[None], atol=1e-13)
    np.testing.assert_allclose(covs, M @ mu.covs + mu.covs @ M.T, atol=1e-13)
    pushed = mu.push(af.Affine(M, b))
    np.testing.assert_allclose(pushed.means, mu.means @ M.T + b[None], atol=1e-13)
    np.testing.assert_allclose(pushed.covs, M @ mu.covs @ M.T, atol=1e-13)
    # The root of a singular covariance has round-off of the order of the root of that of the covariance.
    for start, most in ((some(3), 1e-14), (mu, 1e-8)):
        assert float(start.report(af.Affine(M, b))["closure"]["residual"]) < most
    path = af.solve(Linear(M, b), mu, 1.0, save_at=3, rtol=1e-9, atol=1e-11)
    flow = scipy.linalg.expm(np.block([[np.asarray(M), np.asarray(b)[:, None]], [np.zeros((1, 4))]]))
    np.testing.assert_allclose(path.final.means, mu.means @ flow[:3, :3].T + flow[None, :3, 3], rtol=1e-6)
    np.testing.assert_allclose(path.final.covs, flow[:3, :3] @ mu.covs @ flow[:3, :3].T, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(path.final.weights, mu.weights)


def test_the_cubature_is_of_third_degree(rng):
    """Cubics are integrated exactly in the mean; the next term is of the order of the fourth power of the width."""
    mean, form = rng.normal(size=2), rng.normal(size=(2, 2))

    def bent(x):
        return jnp.stack([jnp.sin(x[:, 0] + x[:, 1] ** 2), jnp.cos(x @ form[0]) * x[:, 1]], axis=1)

    def error(width):
        mu = af.GaussianMixture([1.0], mean[None], width**2 * np.array([[[1.0, 0.3], [0.3, 0.5]]]))
        points, q = tokens_of(mu, 30)
        values = np.asarray(bent(jnp.asarray(points[0])))
        flux = np.einsum("m,mi,mj->ij", q, values, points[0] - mean[None])
        means, covs = mu.rate(bent)
        return np.abs(means[0] - q @ values).max(), np.abs(covs[0] - flux - flux.T).max()

    (coarse, coarse_flux), (fine, fine_flux) = error(0.1), error(0.05)
    assert 3.7 < np.log2(coarse / fine) < 4.3
    assert 3.7 < np.log2(coarse_flux / fine_flux) < 4.3
    mu = some(2)
    points, q = tokens_of(mu, 5)
    cubic = np.stack([points[..., 0] ** 2 * points[..., 1], points[..., 1] ** 3], axis=-1)
    means, _ = mu.rate(lambda x: jnp.stack([x[:, 0] ** 2 * x[:, 1], x[:, 1] ** 3], axis=1))
    np.testing.assert_allclose(means, np.einsum("m,kmd->kd", q, cubic), atol=1e-12)


def test_the_residual_is_the_part_that_is_not_affine():
    """On the line, at 0, +-1/2 and +-1 deviations: x + c x^2 about 0 has the fit c + x, from the ends."""
    mu, c = af.GaussianMixture([1.0], [[0.0]], [[[1.0]]]), 0.3
    x = np.array([0.0, -1.0, -0.5, 0.5, 1.0])
    expected = np.sqrt(np.sum((c * x**2 - c) ** 2) / np.sum((x + c * x**2) ** 2))
    np.testing.assert_allclose(mu.report(lambda x: x + c * x**2)["closure"]["residual"], expected, rtol=1e-13)
    assert float(mu.report(lambda x: 0 * x)["closure"]["residual"]) == 0


def test_clusters_in_many_dimensions(rng):
    dim = 128
    means = 3 * np.linalg.qr(rng.normal(size=(dim, 4)))[0].T
    mu = af.GaussianMixture([1.0, 2.0, 3.0, 4.0], means, np.broadcast_to(0.01 * np.eye(dim), (4, dim, dim)))
    law = l2(1.0, dim)
    path = af.solve(law, mu, 0.2, save_at=2)
    assert path.status.kind == "reached"
    assert path.stats["closure"]["residual"] < 0.1
    np.testing.assert_array_equal(path.final.weights, mu.weights)
    assert np.linalg.eigvalsh(np.asarray(path.final.covs)).min() > 0
    # Orthogonal clusters stay in the span of their means, but for the first step of round-off.
    outside = np.asarray(path.final.means) @ (np.eye(dim) - means.T @ np.linalg.pinv(means.T))
    assert np.abs(outside).max() < 1e-10


@pytest.mark.long
def test_the_derivative_in_beta_against_differences():
    mu = some(2)

    def final(beta):
        path = af.solve(af.Attention(af.squared_distance(np.eye(2), np.eye(2), 2 / beta), -np.eye(2)), mu, 0.5, save_at=2)
        return path.final.means @ jnp.array([1.0, 2.0]) @ jnp.array([1.0, -1.0, 0.5]) + path.final.covs[0, 0, 1]

    h = 1e-3
    exact = (8 * (final(1 + h) - final(1 - h)) - (final(1 + 2 * h) - final(1 - 2 * h))) / (12 * h)
    np.testing.assert_allclose(jax.grad(final)(1.0), exact, rtol=1e-5)


def test_paths_are_saved_and_loaded(tmp_path):
    mu, law = some(2, singular=True), af.simple_attention(0.5, 2)
    path = af.solve(law, mu, 0.3, save_at=4, out=tmp_path / "run")
    path.save(tmp_path / "saved")
    for folder in ("run", "saved"):
        back = af.load_path(tmp_path / folder)
        assert isinstance(back.final, af.GaussianMixture)
        for found, due in zip((back.final.weights, *back.states), (mu.weights, *path.states), strict=True):
            np.testing.assert_allclose(found, due, rtol=1e-15)
    frames = path.to_xarray()
    assert frames["covs"].dims == ("time", "component", "coordinate", "coordinate_")
    assert frames.attrs["closure.residual"] == path.stats["closure"]["residual"]


@pytest.mark.long
def test_layers_are_the_euler_scheme():
    mu, law = some(2), l2(1.0, 2)
    once = af.layers(law, mu, 1, step=0.1)
    velocity = law.at(mu)
    by_hand = mu.push(lambda x: x + 0.1 * velocity(x))
    np.testing.assert_allclose(once.final.covs, by_hand.covs, rtol=1e-12)
    assert once.stats["closure"]["residual"] == pytest.approx(float(mu.report(velocity)["closure"]["residual"]))
    exact = af.solve(law, mu, 1.0, save_at=2).final
    errors = [np.abs(af.layers(law, mu, n, step=1 / n).final.means - exact.means).max() for n in (20, 40)]
    assert 1.8 < errors[0] / errors[1] < 2.2
    halves = af.layers([law, af.simple_attention(0.1, 2)], mu, 3, step=0.1, norm=af.LayerNorm())
    assert set(halves.stats) == {"solver", "layers", "part 0", "part 1"}
    assert np.isfinite(halves.final.covs).all()


class Still(af.Field):
    def at(self, mu, t=0.0, sums=None):
        return lambda x: 0 * x


def test_noise_is_the_heat_flow():
    mu = some(2)
    path = af.solve(Still(), mu, 0.5, save_at=3, noise=0.8)
    np.testing.assert_allclose(path.final.covs, mu.heat(0.5 * 0.8**2).covs, rtol=1e-7)
    np.testing.assert_allclose(path.final.means, mu.means, atol=1e-14)


def test_merging_keeps_moments_and_stays_within_its_tolerance(rng):
    means = np.concatenate([rng.normal(size=(4, 1)) * 0.05, 5 + rng.normal(size=(3, 1)) * 0.05])
    mu = af.GaussianMixture(rng.uniform(1, 2, size=7), means, rng.uniform(0.2, 0.25, size=(7, 1, 1)))
    counts = []
    for tolerance in (0.0, 0.01, 0.1, 10.0):
        small = mu.merged(tolerance)
        counts.append(len(small.weights))
        np.testing.assert_allclose(small.mean, mu.mean, rtol=1e-13)
        np.testing.assert_allclose(small.cov, mu.cov, rtol=1e-12)
        np.testing.assert_allclose(small.weights.sum(), 1, rtol=1e-14)
        assert float(af.wasserstein2(mu, small)) <= tolerance + 1e-7
    assert counts[0] == 7 >= counts[1] >= counts[2] == 2 > counts[3] == 1
    np.testing.assert_allclose(mu.merged(0.1).weights, [mu.weights[:4].sum(), mu.weights[4:].sum()], rtol=1e-14)
    # Components that are one already, singular ones, and one without mass.
    point = some(2, singular=True)
    twice = af.GaussianMixture([0.5, 0.0, 0.5], np.ones((3, 2)), [np.eye(2)] * 3)
    assert len(twice.merged(1e-6).weights) == 1
    np.testing.assert_allclose(point.merged(10.0).covs[0], point.cov, rtol=1e-12)
    # The cost of a pair, by hand: two standard normal laws of equal weight at -a and a become N(0, 1 + a^2).
    a = 0.7
    cost = a**2 + (np.sqrt(1 + a**2) - 1) ** 2
    pair = (np.full(2, 0.5), np.array([[-a], [a]]), np.ones((2, 1, 1)))
    assert len(merged(*pair, np.sqrt(cost) * (1 - 1e-9))[0]) == 2
    assert len(merged(*pair, np.sqrt(cost) * (1 + 1e-9))[0]) == 1


def test_singular_covariances_have_samples_and_integrals_but_no_density(key):
    mu = some(2, singular=True)
    np.testing.assert_allclose(mu.integrate(lambda y: y), mu.mean, atol=1e-12)
    cloud = mu.sample(20_000, key=key)
    np.testing.assert_allclose(cloud.cov, mu.cov, atol=0.05)
    # A sixth of the mass is one point.
    assert abs(np.mean(np.all(np.abs(cloud.points - mu.means[:1]) < 1e-12, axis=1)) - 1 / 6) < 0.02
    for ask in (mu.density, mu.log_density, mu.score):
        with pytest.raises(
            ValueError, match=r"if its covariances have full rank, got smallest eigenvalue .* in \[.\]; smooth it with mu.heat"
        ):
            ask([[0.0, 0.0]])
    assert np.isfinite(mu.heat(0.1).density([[0.0, 0.0]])).all()


def test_frames_and_compositions_take_mixtures():
    mean, cov = np.array([0.3, -0.2]), np.array([[0.3, 0.1], [0.1, 0.2]])
    mu, gaussian, x = af.GaussianMixture([1.0], mean[None], cov[None]), af.Gaussian(mean, cov), jnp.ones((1, 2))
    law = af.simple_attention(1.0, 2)
    for field in (af.normalized_update(law), af.rescaled(law), 2 * law + law, af.MultiHead([law, law])):
        np.testing.assert_allclose(field.at(mu, 0.3)(x), field.at(gaussian, 0.3)(x), rtol=1e-10)


def test_single_precision():
    mu = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), some(2))
    path = af.solve(af.simple_attention(0.5, 2), mu, 0.3, save_at=2)
    assert path.final.covs.dtype == jnp.float32
    exact = af.solve(af.simple_attention(0.5, 2), some(2), 0.3, save_at=2)
    np.testing.assert_allclose(path.final.covs, exact.final.covs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("normalize", [af.Sinkhorn(), af.Hardmax(), af.Sigmoid(), af.Linear()])
def test_normalizations_without_a_closed_form_are_refused(normalize):
    name = type(normalize).__name__
    with pytest.raises(
        ValueError, match=f"{name} attention over a GaussianMixture has no closed form here; use Softmax or Unnormalized, or"
    ):
        af.solve(af.simple_attention(1.0, 2, normalize), some(2), 1.0)


def test_bad_input_is_named():
    mu, law = some(2), af.simple_attention(1.0, 2)
    for normalize in (None, af.Linear()):
        with pytest.raises(ValueError, match="a mask needs tokens in order, got a GaussianMixture; draw tokens"):
            af.simple_attention(1.0, 2, normalize, mask=af.Causal()).at(mu)
    with pytest.raises(ValueError, match=r"the law acts on R\^3, got a measure on R\^2"):
        af.solve(af.simple_attention(1.0, 3), mu, 1.0)
    with pytest.raises(TypeError, match=r"which has no atoms; draw tokens with mu\.sample"):
        law.weights(jnp.ones((1, 2)), mu)
    with pytest.raises(ValueError, match="must give one row per point"):
        mu.rate(lambda x: x[0])
    with pytest.raises(ValueError, match=r"tolerance must not be negative, got -1\.0"):
        mu.merged(-1.0)
    with pytest.raises(ValueError, match="merged decides on the host"):
        eqx.filter_jit(lambda mu: mu.merged(1.0))(mu)
    with pytest.raises(TypeError, match="mu must be Particles or a Gaussian, got GaussianMixture; draw tokens"):
        af.Heat().step(mu, 0.1)
    with pytest.raises(TypeError, match="mu must be Particles or a Gaussian, got GaussianMixture; draw tokens"):
        af.FokkerPlanck(mu).step(mu, 0.1)
