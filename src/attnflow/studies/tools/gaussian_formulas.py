"""The velocities of three laws on a Gaussian, against tokens; the formula of Sinkhorn attention, as it should be and as it is printed."""

import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

import attnflow as af

LAWS = ("softmax", "L2", "Sinkhorn")


def law(name: str, Q: Any, K: Any, V: Any) -> af.Attention:
    logit = af.dot_product(Q, K) if name == "softmax" else af.squared_distance(Q, K)
    return af.Attention(logit, V, af.Sinkhorn() if name == "Sinkhorn" else af.Softmax())


def matrices(seed: int, draws: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of random Q and K, and of a covariance with eigenvalues from 1/2 to 2."""
    rng = np.random.default_rng([seed, dim])
    turned = np.linalg.qr(rng.normal(size=(draws, dim, dim)))[0]
    covs = np.einsum("kij,kj,klj->kil", turned, rng.uniform(0.5, 2.0, size=(draws, dim)), turned)
    return *(rng.normal(size=(2, draws, dim, dim)) / 3), covs


def velocities(Q: Any, K: Any, S: Any, nodes: int) -> tuple[dict[str, float], tuple[float, ...], float]:
    """In the plane: every law on tokens against its affine velocity; S' of Sinkhorn attention by the formulas; the equation for W."""
    gauss, V = af.Gaussian([0.3, -0.2], S), np.array([[1.0, 0.4], [-0.3, 0.8]])
    tokens = af.quadrature(gauss, nodes)
    x, w = np.asarray(tokens.points), np.asarray(tokens.weights)
    found = {name: np.asarray(_velocity(law(name, Q, K, V), tokens)) for name in LAWS}
    known: dict[str, Any] = {name: law(name, Q, K, V).at(gauss) for name in LAWS}
    gaps = {name: found[name] - x @ np.asarray(v.matrix).T - np.asarray(v.offset) for name, v in known.items()}
    affine = {name: math.sqrt(w @ (gaps[name] ** 2).sum(axis=1) / (w @ (found[name] ** 2).sum(axis=1))) for name in LAWS}
    A, moved = 2 * K.T @ Q, (found["Sinkhorn"] * w[:, None]).T @ (x - w @ x)
    W = np.linalg.solve(V, np.asarray(known["Sinkhorn"].matrix)) @ np.linalg.inv(A)
    ways = [V @ stated(S, A), V @ printed(S, A / 2), V @ printed(S, A)]
    return affine, tuple(off(way + way.T, moved + moved.T) for way in ways), off(W + W @ A @ S @ A.T @ W, S)


@eqx.filter_jit
def _velocity(law: af.Attention, mu: af.Particles) -> Float[Array, "n d"]:
    return law.at(mu)(mu.points)


def stated(S: np.ndarray, A: np.ndarray) -> np.ndarray:
    """`C A^-T`."""
    return _C(S, A) @ np.linalg.inv(A.T)


def printed(S: np.ndarray, A: np.ndarray) -> np.ndarray:
    """`C S^-1 A^-T S`."""
    return _C(S, A) @ np.linalg.inv(S) @ np.linalg.inv(A.T) @ S


def _C(S: np.ndarray, A: np.ndarray) -> np.ndarray:
    from scipy.linalg import sqrtm

    root = np.real(sqrtm(S))
    return (root @ np.real(sqrtm(np.eye(len(S)) + 4 * root @ A @ S @ A.T @ root)) @ np.linalg.inv(root) - np.eye(len(S))) / 2


def off(found: Any, known: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found) - known) / np.linalg.norm(known))
