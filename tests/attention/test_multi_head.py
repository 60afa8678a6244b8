"""Ordinary multi-head weights: against torch, against heads one by one, on every engine and picture."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.attention.stacked import StackedHeads

D, H, N = 8, 2, 7
gelu = partial(jax.nn.gelu, approximate=False)


def weights(rng, d=D, heads=H, groups=None, p=None, biased=True):
    """The arguments of `multi_head`: matrices, and biases if they are wanted."""
    groups, p = groups or heads, p or d // heads
    shapes = (heads * p, d), (groups * p, d), (groups * p, d), (d, heads * p)
    matrices = [rng.normal(size=shape) / np.sqrt(d) for shape in shapes]
    names = {"query_bias": heads * p, "key_bias": groups * p, "value_bias": groups * p, "out_bias": d}
    return matrices, {name: rng.normal(size=length) / 4 for name, length in names.items()} if biased else {}


def dense(matrices, biases, heads=H, normalize=None, mask=None):
    """The same as `H * MultiHead` of heads with values `U_h V_h`, and the constant of the biases; for rows that sum to one."""
    Q, K, V, U = matrices
    p, laws = len(Q) // heads, []
    for h in range(heads):
        rows = slice(h * p, (h + 1) * p)
        a, b = (biases[name][rows] if name in biases else None for name in ("query_bias", "key_bias"))
        laws.append(
            af.Attention(af.dot_product(Q[rows], K[rows], np.sqrt(p), query_bias=a, key_bias=b), U[:, rows] @ V[rows], normalize, mask=mask)
        )
    law = heads * af.MultiHead(laws)
    if not biases:
        return law
    return law.then(af.Affine(jnp.eye(len(U)), jnp.asarray(U @ biases["value_bias"] + biases["out_bias"])))


def rate(law, mu, sums=None):
    return mu.rate(law.at(mu, sums=sums))


@pytest.mark.parametrize("mask", [None, af.Causal()])
def test_against_torchs_module(rng, mask):
    torch = pytest.importorskip("torch")
    matrices, biases = weights(rng)
    x = rng.normal(size=(N, D))
    module = torch.nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    state = {
        "in_proj_weight": np.concatenate(matrices[:3]),
        "in_proj_bias": np.concatenate([biases[name] for name in ("query_bias", "key_bias", "value_bias")]),
        "out_proj.weight": matrices[3],
        "out_proj.bias": biases["out_bias"],
    }
    module.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    hidden = None if mask is None else torch.ones(N, N, dtype=torch.bool).triu(1)
    batch = torch.tensor(x)[None]
    with torch.no_grad():
        expected, shares = module(batch, batch, batch, attn_mask=hidden, average_attn_weights=False)
    law, mu = af.multi_head(*matrices, H, **biases, mask=mask), af.Particles(x)
    for sums in (None, af.Streamed(8, 8), af.Streamed(4, 3, native=False)):
        np.testing.assert_allclose(rate(law, mu, sums), expected[0], atol=1e-12)
    np.testing.assert_allclose(law.weights(mu.points, mu), shares[0], atol=1e-12)
    np.testing.assert_allclose(rate(dense(matrices, biases, mask=mask), mu), expected[0], atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_keys_against_torch(rng, groups):
    torch = pytest.importorskip("torch")
    matrices, biases = weights(rng, heads=4, groups=groups)
    x = rng.normal(size=(N, D))
    Q, K, V, U = map(torch.tensor, matrices)
    a, b, c, shift = (torch.tensor(bias) for bias in biases.values())
    q, k, v = (
        (torch.tensor(x) @ M.T + bias).reshape(N, -1, 2).transpose(0, 1).repeat_interleave(times, 0)
        for M, bias, times in ((Q, a, 1), (K, b, 4 // groups), (V, c, 4 // groups))
    )
    found = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    expected = found.transpose(0, 1).reshape(N, D) @ U.T + shift
    law, mu = af.multi_head(*matrices, 4, **biases, key_heads=groups, mask=af.Causal()), af.Particles(x)
    assert law.laws.logit.key.shape == law.laws.inner.matrix.shape == (groups, 2, D)
    for sums in (None, af.Streamed(4, 4)):
        np.testing.assert_allclose(rate(law, mu, sums), expected, atol=1e-12)
    np.testing.assert_allclose(sum(rate(law.head(h), mu) for h in range(len(law))) + shift.numpy()[None], expected, atol=1e-12)


@pytest.mark.parametrize(("name", "activation"), [("relu", jax.nn.relu), ("gelu", gelu)])
def test_twelve_layers_are_torchs_encoder(rng, name, activation):
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(N, D))
    expected, tokens, blocks, slow, norms = [x], torch.tensor(x)[None], [], [], []
    for _ in range(12):
        layer = torch.nn.TransformerEncoderLayer(D, H, 16, 0.0, name, batch_first=True, dtype=torch.float64).eval()
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_(torch.tensor(rng.normal(size=weight.shape) / np.sqrt(D)))
            tokens = layer(tokens)
        expected.append(tokens[0].numpy())
        part = {key: value.detach().numpy() for key, value in layer.named_parameters()}
        matrices = [*part["self_attn.in_proj_weight"].reshape(3, D, D), part["self_attn.out_proj.weight"]]
        biases = [*part["self_attn.in_proj_bias"].reshape(3, D), part["self_attn.out_proj.bias"]]
        biases = dict(zip(("query_bias", "key_bias", "value_bias", "out_bias"), biases))
        mlp = af.Perceptron(
            part["linear1.weight"], part["linear2.weight"], part["linear1.bias"], part["linear2.bias"], activation=activation
        )
        blocks.append([af.multi_head(*matrices, H, **biases), mlp])
        slow.append([dense(matrices, biases), mlp])
        norms.append([af.LayerNorm(part[f"norm{i}.weight"], part[f"norm{i}.bias"]) for i in (1, 2)])
    times = np.arange(12)
    norm = [af.piecewise(times, [pair[i] for pair in norms]) for i in (0, 1)]
    for stack in (blocks, slow):
        path = af.layers(stack, af.Particles(x), norm=norm)
        np.testing.assert_allclose(path.states, expected, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_heads_against_torch(rng, interleaved):
    """The first two of three pairs are turned; two heads share their keys."""
    torch = pytest.importorskip("torch")
    d, p, frequencies = 12, 6, np.array([1.0, 0.1])
    matrices, biases = weights(rng, d, 2, 1, p)
    x, order = torch.tensor(rng.normal(size=(N, d))), torch.arange(N, dtype=torch.float64)
    angle = order[:, None, None] * torch.tensor(frequencies)

    def turn(rows):
        first, second = (rows[..., 0:4:2], rows[..., 1:4:2]) if interleaved else (rows[..., :2], rows[..., 2:4])
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
        pair = torch.stack([turned.real, turned.imag], dim=-1 if interleaved else -2).flatten(-2)
        return torch.cat([pair, rows[..., 4:]], dim=-1)

    parts = zip(matrices[:3], (biases[name] for name in ("query_bias", "key_bias", "value_bias")))
    q, k, v = ((x @ torch.tensor(M).T + torch.tensor(bias)).reshape(N, -1, p) for M, bias in parts)
    q, k, v = turn(q).transpose(0, 1), turn(k).transpose(0, 1).expand(2, -1, -1), v.transpose(0, 1).expand(2, -1, -1)
    found = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    expected = found.transpose(0, 1).reshape(N, -1).numpy() @ matrices[3].T + biases["out_bias"][None]
    law = af.multi_head(*matrices, 2, **biases, key_heads=1, rotary=frequencies, interleaved=interleaved, mask=af.Causal())
    mu = af.Particles(x.numpy())
    for sums in (None, af.Streamed(4, 4)):
        np.testing.assert_allclose(rate(law, mu, sums), expected, atol=1e-12)


NORMALIZATIONS = {
    "softmax": af.Softmax(),
    "unnormalized": af.Unnormalized(-0.5),
    "sinkhorn": af.Sinkhorn(),
    "hardmax": af.Hardmax(),
    "sigmoid": af.Sigmoid(),
    "linear": af.Linear(),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
@pytest.mark.cases
def test_the_sum_of_the_heads_on_every_engine(rng, name):
    matrices, biases = weights(rng)
    mu, queries = af.Particles(rng.normal(size=(N, D)), rng.random(N)), jnp.asarray(rng.normal(size=(4, D)))
    law = af.multi_head(*matrices, H, **biases, normalize=NORMALIZATIONS[name], temperature=1.5)
    heads = [law.head(h) for h in range(len(law))]
    shift = biases["out_bias"][None]
    for sums in (None, af.Streamed(8, 8)):
        velocity = law.at(mu, sums=sums)
        for x in (mu.points, queries):
            expected = sum(head.at(mu, sums=sums)(x) for head in heads) + shift
            np.testing.assert_allclose(velocity(x), expected, atol=1e-12)
        assert [type(engine) for engine in velocity.engines] == [type(engine) for engine in heads[0].at(mu, sums=sums).engines]
    found = law.weights(queries, mu) if name != "sinkhorn" else law.weights(mu.points, mu)
    assert found.shape == (H, len(queries) if name != "sinkhorn" else N, N)
    np.testing.assert_allclose(found, [head.weights(queries if name != "sinkhorn" else mu.points, mu) for head in heads], atol=1e-13)


@pytest.mark.parametrize("sums", [None, af.Streamed(4, 4)])
def test_sinkhorn_heads_are_doubly_stochastic_and_report_the_worst(rng, sums):
    matrices, biases = weights(rng)
    law, mu = af.multi_head(*matrices, H, **biases, normalize=af.Sinkhorn()), af.Particles(rng.normal(size=(N, D)))
    shares = law.weights(mu.points, mu)
    np.testing.assert_allclose(shares.sum(axis=2), 1, atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-9)
    reports = [law.head(h).at(mu, sums=sums).report["sinkhorn"] for h in range(H)]
    found = law.at(mu, sums=sums).report["sinkhorn"]
    assert {figure.shape for figure in found.values()} == {()}
    assert found["converged"]
    assert found["iterations"] == max(report["iterations"] for report in reports)
    stopped = af.multi_head(*matrices, H, **biases, normalize=af.Sinkhorn(max_iterations=1))
    assert not stopped.at(mu, sums=sums).report["sinkhorn"]["converged"]


def test_scalings_are_done_once_per_velocity(rng):
    """The potentials are arrays of the velocity, one row for each head; the tokens are there once."""
    matrices, _ = weights(rng, biased=False)
    law, mu = af.multi_head(*matrices, H, normalize=af.Sinkhorn()), af.Particles(rng.normal(size=(N, D)))
    heads = law.at(mu).heads
    assert heads.many.velocity.velocity.scaling.g.shape == (H, N)
    assert heads.one.velocity.velocity.clouds.keys.points.shape == (N, D)
    assert "while" not in str(jax.make_jaxpr(law.at(mu))(mu.points))


@pytest.mark.parametrize("name", ["softmax", "sinkhorn", "linear"])
def test_on_a_gaussian_the_law_is_affine(rng, name):
    matrices, biases = weights(rng, 4, 2)
    law = af.multi_head(*matrices, 2, **biases, normalize=NORMALIZATIONS[name])
    root = rng.normal(size=(4, 4)) / 2
    mu = af.Gaussian(rng.normal(size=4), root @ root.T)
    velocity, parts = law.at(mu), [law.head(h).at(mu) for h in range(2)]
    assert isinstance(velocity, af.Affine)
    np.testing.assert_allclose(velocity.matrix, sum(part.matrix for part in parts), atol=1e-12)
    np.testing.assert_allclose(velocity.offset, sum(part.offset for part in parts) + biases["out_bias"], atol=1e-12)
    assert isinstance((2 * law + law).at(mu), af.Affine)


def test_fields_of_heads(rng):
    matrices, biases = weights(rng)
    law, mu = af.multi_head(*matrices, H, **biases), af.Particles(rng.normal(size=(N, D)))
    plain = dense(*weights(np.random.default_rng(20240), biased=True))
    mlp = af.Perceptron(rng.normal(size=(5, D)), rng.normal(size=(D, 5)))
    once = rate(law, mu)
    np.testing.assert_allclose(once, rate(plain, mu), atol=1e-12)
    np.testing.assert_allclose(rate(law + mlp, mu), once + mlp(mu.points), atol=1e-12)
    np.testing.assert_allclose(rate(2 * law, mu), 2 * once, atol=1e-12)
    np.testing.assert_allclose(rate(sum([law, law]), mu), 2 * once, atol=1e-12)
    np.testing.assert_allclose(rate(law.then(mlp), mu), mlp(once), atol=1e-12)
    path = af.solve(law + mlp, mu, 0.1)
    np.testing.assert_allclose(path.final.points, af.solve(plain + mlp, mu, 0.1).final.points, atol=1e-6)
    assert path.stats["engine"] == "Dense()"
    assert path.stats["part 0"]["round_off"]["bound"] < 1e-12


@pytest.mark.long
def test_few_dimensions_on_spectral_sums(rng):
    """In up to three dimensions a head averages tokens, which spectral sums need."""
    matrices, biases = weights(rng, 2, 2)
    law = af.multi_head(*matrices, 2, query_bias=biases["query_bias"], out_bias=biases["out_bias"])
    mu = af.Particles(rng.normal(size=(60, 2)))
    exact = rate(law, mu, af.Dense())
    np.testing.assert_allclose(rate(law, mu, af.Spectral(1e-6)), exact, atol=1e-5)
    plan = af.plan(law, mu, af.Spectral(1e-6))
    assert plan.planned
    np.testing.assert_allclose(jax.jit(lambda mu: rate(law, mu, plan))(mu), exact, atol=1e-5)


def test_on_a_density(rng):
    matrices, biases = weights(rng, 2, 2)
    law = af.multi_head(*matrices, 2, **biases)
    grid = af.Grid.from_density(lambda x: jnp.exp(-jnp.sum(x**2, axis=1)), [af.Interval(-4, 4, 24)] * 2, normalize=True)
    x = jnp.asarray(rng.normal(size=(5, 2)))
    expected = sum(law.head(h).at(grid)(x) for h in range(2)) + biases["out_bias"][None]
    np.testing.assert_allclose(law.at(grid)(x), expected, atol=1e-12)
    assert law.at(grid).report["sharpness"] == max(law.head(h).at(grid).report["sharpness"] for h in range(2))


@pytest.mark.parametrize("sums", [None, af.Streamed(4, 4)])
@pytest.mark.cases
def test_gradients_in_all_arrays(rng, sums):
    """Of the law, and of what the user gave: against those of the heads one by one. Keys that are shared have one gradient."""
    matrices, biases = weights(rng, heads=4, groups=2)
    mu = af.Particles(rng.normal(size=(N, D)))
    make = partial(af.multi_head, heads=4, key_heads=2, mask=af.ALiBi(0.3))

    def stacked(law):
        return jnp.sum(jnp.sin(rate(law, mu, sums)))

    def one_by_one(law):
        return jnp.sum(jnp.sin(sum(rate(law.head(h), mu, sums) for h in range(4)) + law.out_bias[None]))

    law = make(*matrices, **biases)
    found, expected = (eqx.filter_jit(eqx.filter_grad(loss))(law) for loss in (stacked, one_by_one))
    assert found.laws.logit.key.shape == (2, 2, D)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, expected)
    given = jax.jit(jax.grad(lambda given: stacked(make(*given[0], **given[1]))))((matrices, biases))
    np.testing.assert_allclose(given[0][1], found.laws.logit.key.reshape(4, D), atol=1e-12)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves((given[0], given[1]["value_bias"], given[1]["out_bias"])))


def test_other_values_do_not_compile_again(rng):
    traces = 0

    @eqx.filter_jit
    def moved(law, mu):
        nonlocal traces
        traces += 1
        return rate(law, mu)

    for _ in range(3):
        matrices, biases = weights(rng)
        mu = af.Particles(rng.normal(size=(N, D)))
        law = af.multi_head(*matrices, H, **biases, normalize=af.Sinkhorn(), temperature=rng.random())
        moved(law, mu)
    assert traces == 1


def test_nothing_is_compiled_for_a_law_nor_for_other_values(rng):
    """Construction is by NumPy; the velocity and its values, called by hand, are a program each."""
    compiled = 0

    def listen(name, *_, **__):
        nonlocal compiled
        compiled += name == "/jax/core/compile/backend_compile_duration"

    def made():
        matrices, biases = weights(rng, heads=4, groups=2)
        return af.multi_head(*matrices, 4, **biases, key_heads=2, mask=af.Causal()), af.Particles(rng.normal(size=(N, D)))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        law, mu = made()
        assert compiled == 0
        rate(law, mu)
        compiled = 0
        rate(*made())
        assert compiled == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_head_of_an_explicit_mask(rng):
    matrices, biases = weights(rng, D, 1)
    mask = af.Explicit(np.tri(N) > 0)
    law, mu = af.multi_head(*matrices, 1, **biases, mask=mask), af.Particles(rng.normal(size=(N, D)))
    causal = af.multi_head(*matrices, 1, **biases, mask=af.Causal())
    assert isinstance(law, StackedHeads)
    assert len(law) == 1
    np.testing.assert_allclose(rate(law, mu), rate(causal, mu), atol=1e-13)


def test_many_pairs_go_head_by_head(rng):
    matrices, biases = weights(rng)
    law, mu = af.multi_head(*matrices, H, **biases, mask=af.Causal()), af.Particles(rng.normal(size=(150, D)))
    assert law.at(mu).at_once(4)
    assert not law.at(mu).at_once(150)
    np.testing.assert_allclose(rate(law, mu), rate(dense(matrices, biases, mask=af.Causal()), mu), atol=1e-12)


def test_what_is_refused(rng):
    (Q, K, V, U), _ = weights(rng)
    law = af.multi_head(Q, K, V, U, H)
    for call, said in (
        (lambda: af.multi_head(Q, K, V, U, 3), r"query must have shape \[6, 8\]"),
        (lambda: af.multi_head(Q, K[:4], V[:4], U, H), "give key_heads"),
        (lambda: af.multi_head(Q, K, V, U, H, key_heads=3), "key_heads must divide heads, 2, got 3"),
        (lambda: af.multi_head(Q, K, V, U[:, :4], H), r"out must have shape \[8, 8\]"),
        (lambda: af.multi_head(Q, K, V, U, H, value_bias=np.ones(3)), "value_bias must have 8 entries"),
        (lambda: af.multi_head(Q, K, V, U, H, interleaved=True), "got no rotary"),
        (lambda: af.multi_head(Q, K, V, U, H, rotary=np.ones(3)), r"got r = 3"),
        (lambda: af.multi_head(Q, K, V, U, H, normalize=af.Sinkhorn(), mask=af.Causal()), "Sinkhorn takes no mask"),
        (lambda: law.at(af.Particles(np.ones((3, 2)))), r"the law acts on R\^8"),
        (lambda: af.multi_head(Q, K, V, U, H, mask=af.Window(0.5)).at(af.Particles(np.ones((3, D)))), "count in tokens"),
        (lambda: af.multi_head(Q, K, V, U, H, mask=af.Causal()).at(af.Gaussian(np.ones(D), np.eye(D))), "a mask needs tokens"),
        (
            lambda: af.multi_head(Q, K, V, U, H, mask=af.Causal()).at(af.Particles(np.ones((3, D))))(jnp.ones((3, D))),
            "order of the queries",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    with pytest.raises(TypeError, match="mask"):
        af.multi_head(Q, K, V, U, H, mask=[af.Causal(), None])
    with pytest.raises(IndexError, match="h must be below 2"):
        law.head(2)
