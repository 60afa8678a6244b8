"""Which limit geometry the matrices of a softmax law lead to (arXiv:2305.05465).

The flow is `x_i' = V sum_j P_ij x_j` with P the softmax of `<Q x_i, K x_j>`, seen in the frame `z = e^{-tV} x`; `A = K^T Q`.
"""

import dataclasses
from typing import Any, Literal

import numpy as np

from attnflow._check import refusal
from attnflow._types import ArrayLike
from attnflow.numerics.arrays import floats, square
from attnflow.numerics.dominant import Dominant, dominant

Shape = Literal["polytope", "hyperplanes", "polytope x subspace", "divergence", "none"]
_CITATION = "arXiv:2305.05465"
# Entries below this part of the largest are round-off.
_ZERO = 1e-9


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a theorem says about the limit of $z$.

    - `shape`: in the words of the verdicts of `af.limit_shape`; "none" if no theorem applies.
    - `statement`: of the theorem, or why none applies.
    - `citation`: where it is proved.
    - `eigenvalue`: the eigenvalue of $V$ that decides, and `rank` its multiplicity, the dimension of the polytope.
    - `at_most`: how many hyperplanes there can be.
    - `boolean`: whether the attention matrix tends to a Boolean one.
    """

    shape: Shape
    statement: str
    citation: str = _CITATION
    eigenvalue: float | None = None
    rank: int | None = None
    at_most: int | None = None
    boolean: bool = False

    def __str__(self) -> str:
        return f"{self.shape}: {self.statement}" + (f" ({self.citation})" if self.shape != "none" else "")

    def agrees(self, verdict: Any) -> bool:
        """Whether a verdict of `af.limit_shape` is what was predicted. A point is a polytope, and lies in one hyperplane."""
        if not hasattr(verdict, "shape") or not hasattr(verdict, "count"):
            raise TypeError(refusal("verdict", "a Verdict of af.limit_shape", verdict))
        if self.shape == "none":
            raise ValueError(f"no theorem applies, so that no verdict can agree: {self.statement}")
        if verdict.shape == "point":
            return self.shape != "divergence"
        return verdict.shape == self.shape and (self.at_most is None or verdict.count <= self.at_most)


def predict_limit(Q: ArrayLike, K: ArrayLike, V: ArrayLike) -> Prediction:
    r"""The theorem of arXiv:2305.05465 that applies to softmax attention on tokens in $\mathbb{R}^d$ with distinct starts, and what it
    says.

    With $A = K^\top Q$, $A > 0$ for symmetric positive definite, and $\lambda$ the eigenvalue of $V$ of largest modulus:

    - $V = c I$, $c > 0$, $A > 0$: $z$ tends to the boundary of a convex polytope, or to 0. In $d = 1$ the attention matrix tends to a
      Boolean one.
    - $\lambda > 0$ simple, with $V f = \lambda f$ and $\langle Q f, K f\rangle > 0$: at most three parallel hyperplanes, one of them
      through 0.
    - $V = \lambda I$ on $F$ and smaller on an invariant complement $G$, $\lambda > 0$ ($V$ is paranormal), $A > 0$: boundary of a polytope
      in $F$, or 0, times $G$.
    - $V = -c I$, $c > 0$, $A > 0$: $z$ diverges, while $x$ itself tends to 0 like $t^{-1/2}$. The paper has $A = I$. For $A > 0$,
      $\sum_i \langle x_i, A x_i\rangle$ decreases, because a softmax mean of $\langle x_j, A x_i\rangle$ is at least the plain mean; near
      0 the covariance obeys $C' = -2 C A C$.

    Other multiples $c$ than 1 are another unit of time. **Arguments:** `Q` and `K` are `[p, d]`, `V` is `[d, d]`.
    """
    q, k = (np.asarray(floats(name, given, "p d"), dtype=float) for name, given in (("Q", Q), ("K", K)))
    v = np.asarray(square("V", V), dtype=float)
    if q.shape != k.shape or q.shape[1] != len(v):
        raise ValueError(f"Q and K must be [p, {len(v)}] for V on R^{len(v)}, got {list(q.shape)} and {list(k.shape)}")
    A, c = k.T @ q, float(np.trace(v)) / len(v)
    definite = _definite(A)
    if c < 0 and np.abs(v - c * np.eye(len(v))).max() <= _ZERO * abs(c):
        if not definite:
            return _none("V is a negative multiple of I, but K^T Q is not symmetric positive definite")
        return Prediction("divergence", "z diverges from almost every start, raw tokens tend to 0 like t^(-1/2)", eigenvalue=c, rank=len(v))
    part = dominant(v)
    if isinstance(part, str):
        return _none(part)
    if len(part.left) == 1 < len(v):
        return _hyperplanes(part, q, k)
    if not definite:
        return _none(
            f"the largest eigenvalue {part.value:.6g} of V has {len(part.left)} dimensions, but K^T Q is not symmetric positive definite"
        )
    if len(part.left) < len(v):
        statement = (
            f"z tends to the boundary of a polytope, or 0, in a subspace of dimension {len(part.left)}, times an invariant complement"
        )
        return Prediction("polytope x subspace", statement, eigenvalue=part.value, rank=len(part.left))
    statement = "z tends to the boundary of a convex polytope, or 0"
    if len(v) == 1:
        statement += "; all rows of the attention matrix but at most one pick the largest or the smallest token"
    return Prediction("polytope", statement, eigenvalue=part.value, rank=len(v), boolean=len(v) == 1)


def _hyperplanes(part: Dominant, q: np.ndarray, k: np.ndarray) -> Prediction:
    f = part.right[:, 0]
    along = float((q @ f) @ (k @ f))
    if along <= _ZERO * np.linalg.norm(q, 2) * np.linalg.norm(k, 2):
        return _none(f"the largest eigenvalue {part.value:.6g} of V is simple, but <Q f, K f> = {along:.4g} is not positive")
    statement = "z tends to at most three parallel hyperplanes, on which the product with the left eigenvector of V is constant"
    return Prediction("hyperplanes", statement, eigenvalue=part.value, rank=1, at_most=3)


def _definite(A: np.ndarray) -> bool:
    """Symmetric and positive definite."""
    size = np.abs(A).max()
    return bool(np.abs(A - A.T).max() <= _ZERO * size and np.linalg.eigvalsh((A + A.T) / 2)[0] > _ZERO * size)


def _none(reason: str) -> Prediction:
    return Prediction("none", reason)
