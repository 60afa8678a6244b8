"""No program of a picture without atoms factors a batch of matrices: two such batches at once wait for each other forever on two cores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.flow.steps.times import times
from attnflow.numerics.linalg import one_by_one
from attnflow.sweeps.batch import Numbers, Plan, stepped

FACTORIZATIONS = ("cholesky", "eigh", "eig", "lu", "qr", "geqrf", "svd", "schur", "triangular_solve", "householder_product")


def batched(jaxpr) -> set[str]:
    """The factorizations of more than one matrix at a time in a program and all that it calls."""
    found = set()
    for equation in jaxpr.eqns:
        shape = equation.invars[0].aval.shape if equation.invars else ()
        if equation.primitive.name in FACTORIZATIONS and np.prod(shape[:-2], initial=1) > 1:
            found.add(equation.primitive.name)
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "jaxpr") or hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found |= batched(inner)
    return found


def mixture(key) -> af.GaussianMixture:
    means = jax.random.normal(key, (3, 2))
    return af.GaussianMixture(jnp.array([1.0, 2.0, 3.0]), means, jnp.broadcast_to(jnp.eye(2)[None], (3, 2, 2)))


def law(beta) -> af.Attention:
    return af.Attention(af.squared_distance(jnp.eye(2), jnp.eye(2), 2 / beta), -jnp.eye(2))


def test_the_search_finds_a_batch():
    matrices = jnp.broadcast_to(jnp.eye(2)[None], (3, 2, 2))
    assert batched(jax.make_jaxpr(jax.vmap(jnp.linalg.cholesky))(matrices).jaxpr) == {"cholesky"}
    assert batched(jax.make_jaxpr(jax.jit(jax.vmap(lambda a: jnp.linalg.solve(a, a))))(matrices).jaxpr) >= {"lu", "triangular_solve"}
    assert not batched(jax.make_jaxpr(one_by_one(jnp.linalg.cholesky))(matrices).jaxpr)


@pytest.mark.parametrize(
    "program",
    [
        lambda mu: mu.rate(law(1.0).at(mu)),
        lambda mu: mu.report(law(1.0).at(mu)),
        lambda mu: mu.log_density(jnp.ones((4, 2))),
        lambda mu: mu.score(jnp.ones((4, 2))),
        lambda mu: mu.sample(4, key=jax.random.key(0)).points,
        lambda mu: mu.integrate(lambda x: x),
        lambda mu: af.mmd(mu, mu.heat(1.0), 1.0),
        jax.grad(lambda mu: jnp.sum(mu.rate(law(1.0).at(mu))[0])),
    ],
    ids=["rate", "report", "log_density", "score", "sample", "integrate", "mmd", "gradient"],
)
def test_mixtures_factor_single_matrices(program, key):
    assert not batched(jax.make_jaxpr(program)(mixture(key)).jaxpr)


def test_sweeps_of_pictures_without_atoms_factor_single_matrices(key):
    """The program of a batch of mixtures, as `sweep` compiles it."""
    plan = Plan(lambda key, beta: (law(beta), mixture(key)), (("mean", lambda mu: mu.mean),), "in turn", 100, native=False)
    numbers = Numbers(times(0.0, 1.0, 2, np.float64).since(np.float64), jnp.array(1e-6), jnp.array(1e-8), None, None)
    program = jax.make_jaxpr(lambda keys, betas: stepped(plan, numbers, keys, {"beta": betas}))
    assert not batched(program(jax.random.split(key, 3), jnp.ones(3)).jaxpr)


def test_one_by_one_is_vmap(rng):
    a, b = rng.normal(size=(4, 3, 3)), rng.normal(size=(4, 3))
    np.testing.assert_allclose(one_by_one(jnp.linalg.solve)(a, b), np.stack([np.linalg.solve(x, y) for x, y in zip(a, b)]), rtol=1e-10)
