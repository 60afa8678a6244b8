"""A model is made of the library's own parts: its laws, derivatives, other normalizations and depths, and what it compiles."""

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def model(saved):
    return lambda name, **options: af.models.load(saved(name)[1], **options)


def test_a_law_is_the_one_of_its_matrices(saved, model, prompt, gap):
    """One head of BERT as `af.Attention` of the matrices in the file: its matrix, its velocity and its flow."""
    bert, tensors = model("bert"), safetensors.load_file(saved("bert")[1] / "model.safetensors")
    layer, head, place = 1, 2, "bert.encoder.layer.1.attention."
    rows = slice(8 * head, 8 * (head + 1))
    Q, K, V = (np.asarray(tensors[f"{place}self.{part}.weight"][rows], float) for part in ("query", "key", "value"))
    a, b, c = (np.asarray(tensors[f"{place}self.{part}.bias"][rows], float) for part in ("query", "key", "value"))
    out = np.asarray(tensors[f"{place}output.dense.weight"][:, rows], float)
    by_hand = af.Attention(af.dot_product(Q, K, np.sqrt(8), query_bias=a, key_bias=b), (out, V, c))
    law, mu = bert.law(layer, head), bert.path(prompt("bert"))[2]
    assert isinstance(law, af.Attention)
    x = np.asarray(mu.points)
    matrix = jax.nn.softmax((x @ Q.T + a) @ (x @ K.T + b).T / np.sqrt(8), axis=1)
    assert gap(law.weights(mu.points, mu), matrix) < 1e-12
    assert gap(mu.rate(law.at(mu)), matrix @ (x @ V.T + c) @ out.T) < 1e-12
    mu = af.Particles(mu.points)
    ours, theirs = (af.solve(found, mu, t1=0.5, save_at=1).final.points for found in (law, by_hand))
    assert gap(ours, theirs) < 1e-12
    assert np.abs(ours - mu.points).max() > 0.1


def test_theory_applies_to_a_law(model, prompt):
    bert, x = model("bert"), prompt("bert")
    law, mu = bert.law(0, 0), bert.measure(x)
    plain = af.Particles(mu.points)
    assert af.predict_limit(law.logit.query, law.logit.key, law.value) is not None
    spectrum = np.linalg.eigvals(law.value)
    assert np.count_nonzero(np.abs(spectrum) > 1e-9) == 8
    assert np.linalg.matrix_rank(np.asarray(law.logit.form.A)) <= 8
    radius = float(np.linalg.norm(mu.points, axis=1).max())
    assert af.theory.lipschitz_bound(law.logit.form.A, law.value, radius, len(x)) > 0
    assert np.isfinite(af.local_lipschitz(law, plain))


@pytest.mark.cases
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_derivatives_in_the_tokens(name, model, prompt, rng):
    """Of an observable of the last layer, against differences; through the padding, the norms and every layer."""
    found = model(name)
    start = found.measure(prompt(name)).points
    direction, at = rng.normal(size=start.shape), rng.normal(size=start.shape)

    def observable(points):
        return jnp.sum(jnp.tanh(found.final(found.path(af.Particles(points))).points) * at)

    value, gradient = jax.value_and_grad(observable)(start)
    h = 1e-4
    near, far = ((observable(start + s * direction) - observable(start - s * direction)) / (2 * s) for s in (h, 2 * h))
    difference = (4 * near - far) / 3
    assert float(value) == pytest.approx(float(observable(start)), rel=1e-12)
    assert float(jnp.sum(gradient * direction)) == pytest.approx(float(difference), rel=1e-8)


def test_a_text_of_a_known_length_compiles_nothing(model, rng):
    """Texts of 9 to 12 tokens share a length; from the second on nothing is compiled, for any of the questions."""
    compiled = []

    def count(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    gpt2 = model("gpt2")
    gpt2.next(rng.integers(0, 60, 9))
    gpt2.logits(rng.integers(0, 60, 12))
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        for n in (9, 10, 11, 12):
            x = rng.integers(0, 60, n)
            path = gpt2.path(x)
            assert path.states.shape == (7, n, 32)
            assert gpt2.final(path).points.shape == (n, 32)
            assert gpt2.logits(x).shape == (n, 60)
            assert len(gpt2.next(x).weights) == 60
        # Other steps are other numbers.
        gpt2.stack(step=1 / 3, depth=2).path(x)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert not compiled


def test_frames_are_half_layers(model, prompt, gap):
    """By the contract of fields, layer by layer: before the norms of BERT, after those of GPT-2."""
    for name in ("bert", "gpt2"):
        found = model(name)
        path = found.path(prompt(name))
        np.testing.assert_allclose(path.ts, 0.5 * np.arange(7))
        for layer in range(found.depth):
            block = found.block(layer)
            for which, field in enumerate((block.attention, block.perceptron)):
                mu, after = path[2 * layer + which], path.states[2 * layer + which + 1]
                plain = af.Particles(mu.points)
                if block.pre:
                    seen = block.seen(which, plain)
                    expected = mu.points + seen.rate(field.at(seen))
                else:
                    expected = block.norms[which](mu.points + plain.rate(field.at(plain)))
                assert gap(after, expected) < 1e-12


def test_sinkhorn_in_place_of_softmax(model, prompt):
    bert, x = model("bert"), prompt("bert")
    other = bert.with_normalization(af.Sinkhorn(tolerance=1e-10))
    path = other.path(x)
    assert path.stats["sinkhorn"]["converged"]
    assert path.stats["sinkhorn"]["iterations"] > 1
    mu = path[0]
    matrix = other.law(0, 1).weights(mu.points, mu)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-8)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-8)
    assert np.abs(path.states[1] - bert.path(x).states[1]).max() > 1e-3
    assert np.abs(bert.law(0, 1).weights(mu.points, mu).sum(axis=0) - 1).max() > 0.1
    with pytest.raises(ValueError, match="identity"):
        model("gpt2").with_normalization(af.Sinkhorn())
    hard = model("gpt2").with_normalization(af.Hardmax()).law(0, 0)
    assert set(np.unique(hard.weights(mu.points, mu))) <= {0.0, 1.0, 0.5}


@pytest.mark.cases
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_small_steps_approach_a_flow(name, model, prompt):
    """k steps of 1/k: the difference to the flow goes down like 1/k, with norms before and after."""
    found, x = model(name), prompt(name)
    assert (found.stack(step=1.0).path(x).states == found.path(x).states).all()
    ends = [found.stack(step=1 / k).path(x).final.points for k in (32, 64, 128)]
    first, second = (np.abs(ends[i + 1] - ends[i]).max() for i in (0, 1))
    assert second < first < 1
    assert first / second == pytest.approx(2, rel=0.15)
    split = found.stack(step=1 / 4).path(x)
    assert len(split) == 2 * 4 * 3 + 1
    assert split.ts[-1] == 3


def test_a_step_of_a_half_layer_is_one_of_euler(model, prompt, gap):
    for name in ("bert", "llama"):
        found, x = model(name), prompt(name)
        whole, half = found.path(x), found.stack(step=0.5).path(x)
        assert gap(half.states[1], (whole.states[0] + whole.states[1]) / 2) < 1e-13


def test_other_depths(model, prompt, gap):
    albert, bert, x = model("albert"), model("bert"), prompt("bert")
    assert albert.stack(depth=12).order == (0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3)
    assert albert.stack(depth=3).order == (0, 1, 0)
    assert bert.stack(depth=5).order == (0, 1, 2, 2, 2)
    assert bert.stack(layer=1).order == (1, 1, 1)
    assert bert.stack(layer=1, depth=2, step=0.5).order == (1, 1, 1, 1)
    # Of a model that is split the layers are those of the model.
    assert bert.stack(step=1 / 4).stack(depth=2, step=1 / 3).order == (0, 0, 0, 1, 1, 1)
    assert bert.stack(step=1 / 4).stack(depth=2).step == 1 / 4
    path, deep = albert.path(x), albert.stack(depth=10).path(x)
    assert gap(deep.states[: len(path)], path.states) == 0
    again = albert.stack(depth=4).blocks
    mu = path.final
    for block in again[2:]:
        for which in (0, 1):
            mu = mu.with_state(block.half(which, mu)[0])
    assert gap(deep.final.points, mu.points) < 1e-12


def test_a_path_is_kept_on_disk_with_its_names(model, prompt, tmp_path):
    bert, x = model("bert"), prompt("bert")
    path = bert.path(x)
    path.save(tmp_path / "path")
    again = af.load_path(tmp_path / "path")
    assert again.measure.names == path.measure.names == tuple(str(i) for i in x)
    assert (np.asarray(again.states) == np.asarray(path.states)).all()
    assert af.effective_rank(again.final) == pytest.approx(float(af.effective_rank(path.final)))


def test_a_prompt_may_have_weights(model, prompt, gap):
    """A token of weight zero is not there; one of twice the weight is there twice."""
    bert = model("bert")
    points = bert.measure(prompt("bert")).points
    double = bert.path(af.Particles(points, np.array([0.0, 2.0] + [1.0] * 11))).states
    twice = bert.path(af.Particles(np.concatenate([points[1:], points[1:2]]))).states
    assert gap(double[:, 1:], twice[:, :-1]) < 1e-12


def test_numbers_that_leave_the_finite_ones_end_the_path(model, prompt):
    """The perceptron of layer 1 overflows: what was before it is kept."""
    gpt2 = model("gpt2", dtype="float32")
    huge = jnp.full_like(gpt2.blocks[1].perceptron.out, 3e38)
    x, broken = prompt("gpt2"), eqx.tree_at(lambda it: it.blocks[1].perceptron.out, gpt2, huge)
    path = broken.path(x)
    assert (path.status.kind, path.status.time, len(path)) == ("blow-up", 1.5, 4)
    assert (np.asarray(path.states) == np.asarray(gpt2.path(x).states[:4])).all()


def test_a_gated_perceptron(rng):
    torch = pytest.importorskip("torch")
    G, W, U = rng.normal(size=(6, 4)), rng.normal(size=(6, 4)), rng.normal(size=(4, 6))
    a, b, c, y = rng.normal(size=6), rng.normal(size=6), rng.normal(size=4), jnp.asarray(rng.normal(size=(5, 4)))
    found = af.GatedPerceptron(G, W, U, a, b, c)
    t = torch.tensor
    rows = t(np.asarray(y))
    expected = (torch.nn.functional.silu(rows @ t(G).T + t(a)) * (rows @ t(W).T + t(b))) @ t(U).T + t(c)
    np.testing.assert_allclose(found(y), expected, atol=1e-12)
    mu = af.Particles(y)
    np.testing.assert_allclose(mu.rate(found.at(mu)), expected, atol=1e-12)
    np.testing.assert_allclose(af.GatedPerceptron(G, W, U)(y), (jax.nn.silu(y @ G.T) * (y @ W.T)) @ U.T, atol=1e-12)
    with pytest.raises(ValueError, match=r"gate \[h, d\] and gate_bias \[h\] must agree with hidden \[6, 4\], got \[5, 4\] and \[5\]"):
        af.GatedPerceptron(G[:5], W, U)
