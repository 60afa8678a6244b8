r"""Tokens in an open hemisphere collapse to one point, and $n$ uniform ones lie in one with Wendel's probability (arXiv:2312.10794).

Wendel (1962): $n$ uniform points of $S^{d-1}$ lie in an open hemisphere with probability $2^{1-n} \sum_{k<d} \binom{n-1}{k}$. A linear
program decides it for thousands of draws; every draw that is a member is then moved by simple attention until it is one point.

Others collapse too: for $d \ge 3$ almost every start does in the end. So the share of runs that have collapsed does not estimate Wendel's
number.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from jaxtyping import Bool, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# A cloud counts as one point when its mean is this close to the sphere, and a share is accepted within so many standard errors.
_POINT, _ERRORS = 1e-4, 3.3

CLAIMS = {
    "wendel": Claim(
        r"$n$ uniform points of $S^{d-1}$ lie in an open hemisphere with probability $2^{-(n-1)} \sum_{k<d} \binom{n-1}{k}$.",
        "Wendel (1962), used in arXiv:2312.10794",
        "proved",
    ),
    "collapse": Claim("Tokens that start in an open hemisphere collapse to one point.", "arXiv:2312.10794", "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Which clouds, how many of them, and how long they are moved."""

    tokens: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=1)] = (3, 5, 8, 12)
    """how many tokens a cloud has"""
    dims: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=1)] = (2, 3, 5)
    """the dimensions of the space around the spheres"""
    draws: Annotated[int, Meta(ge=32)] = 4096
    """how many clouds of each kind are drawn"""
    beta: Positive = 1.0
    """the inverse temperature of those that are moved"""
    t1: Positive = 400.0
    """the latest time at which they must have met"""
    moved: tuple[int, int] = (5, 3)
    """tokens and dimension of the clouds that are moved"""
    seed: Seed = 0
    """of the draws"""

    def check(self) -> None:
        if self.moved[0] not in self.tokens or self.moved[1] not in self.dims:
            raise ValueError(f"moved must be one of the tokens and one of the dims, got {list(self.moved)}")


@dataclasses.dataclass(frozen=True)
class Result:
    """`shares [d, n]` of clouds in a hemisphere. Of the clouds that were moved: `member [r]`, and `order [r, t]`, the length of the mean at
    the times `ts`."""

    spec: Spec
    shares: Float[np.ndarray, "d n"]
    member: Bool[np.ndarray, " r"]
    ts: Float[np.ndarray, " t"]
    order: Float[np.ndarray, "r t"]

    @property
    def theory(self) -> Float[np.ndarray, "d n"]:
        return np.array([[af.theory.wendel(n, dim) for n in self.spec.tokens] for dim in self.spec.dims])


FAST = Spec(tokens=(3, 4), dims=(2, 3), draws=64, moved=(4, 3), t1=100.0)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The linear programs, then the flow of one kind of cloud."""
    spec = Spec() if spec is None else spec
    kinds = [(n, dim) for dim in spec.dims for n in spec.tokens]
    members = dict(zip(kinds, parts(lambda kind: _members(spec, *kind), kinds, "hemispheres", progress)))
    # One part, in which the sweep itself shows how far it is.
    ((ts, order),) = parts(lambda moved: _flow(spec, *moved, progress), [spec.moved], "clouds")
    shares = np.array([[members[n, dim].mean() for n in spec.tokens] for dim in spec.dims])
    return Result(spec, shares, members[spec.moved[0], spec.moved[1]], ts, order)


def _members(spec: Spec, n: int, dim: int) -> Bool[np.ndarray, " r"]:
    """Which clouds lie in an open hemisphere."""
    return np.array([af.in_hemisphere(af.Particles(cloud, space=af.Sphere())) for cloud in _clouds(spec, n, dim)])


def _flow(spec: Spec, n: int, dim: int, progress: bool) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, "r t"]]:
    """Times, and the order of every cloud."""
    times = np.concatenate([[0.0], np.geomspace(0.1, spec.t1, 80)])
    data = af.sweep(
        lambda key, beta: (af.simple_attention(beta, dim), af.samplers.sphere(n, dim, key=key)),
        {"beta": [spec.beta]},
        list(_seeds(spec)),
        t1=spec.t1,
        save_at=times,
        observe={"order": af.order_parameter},
        progress=progress,
    )
    return np.asarray(data.time), np.asarray(data["order"])[0]


def _seeds(spec: Spec) -> range:
    return range(spec.seed * spec.draws, (spec.seed + 1) * spec.draws)


def _clouds(spec: Spec, n: int, dim: int) -> np.ndarray:
    """The clouds of all seeds, `[draws, n, dim]`."""
    keys = jax.vmap(jax.random.key)(np.array(_seeds(spec)))
    return np.asarray(jax.vmap(lambda key: af.samplers.sphere(n, dim, key=key).points)(keys))


def checks(result: Result) -> list[Check]:
    """Shares within their standard errors of Wendel's numbers; every member is one point at the end."""
    spec, found = result.spec, []
    for dim, row, theory in zip(spec.dims, result.shares, result.theory, strict=True):
        for n, share, p in zip(spec.tokens, row, theory, strict=True):
            error = math.sqrt(p * (1 - p) / spec.draws)
            found.append(Check(f"$n = {n}$, $S^{{{dim - 1}}}$: share in a hemisphere", float(share), float(p), _ERRORS * error, "wendel"))
    last = result.order[:, -1]
    found.append(Check("members that have collapsed, share", float((last[result.member] > 1 - _POINT).mean()), 1.0, 0.0, "collapse"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """Shares and predictions."""
    last = result.order[:, -1] > 1 - _POINT
    return {"shares": result.shares, "wendel": result.theory, "collapsed": {"members": last[result.member].mean(), "all": last.mean()}}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The shares against the theory, and how the clouds come together."""
    spec = result.spec
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        shares, order = page.subplots(1, 2)
        for color, dim, row in zip(af.plot.COLORS, spec.dims, result.shares):
            n = np.arange(2, max(spec.tokens) + 2)
            shares.plot(n, [af.theory.wendel(int(k), dim) for k in n], color=color, linewidth=0.9, label=f"$S^{dim - 1}$")
            shares.errorbar(spec.tokens, row, 2 * np.sqrt(row * (1 - row) / spec.draws), fmt="o", color=color, markersize=3.5)
        shares.set(xlabel="tokens $n$", ylabel="share in a hemisphere", ylim=(0, 1.05))
        shares.legend(title="lines: Wendel")
        gap = np.maximum(1 - result.order, 1e-16)
        for rows, color, name in ((~result.member, "0.6", "others"), (result.member, af.plot.COLORS[0], "in a hemisphere")):
            if rows.any():
                low, middle, high = np.quantile(gap[rows], [0.02, 0.5, 0.98], axis=0)
                order.fill_between(result.ts, low, high, color=color, alpha=0.25, linewidth=0)
                order.plot(result.ts, middle, color=color, label=name)
        order.set(xscale="symlog", yscale="log", xlabel="$t$", ylabel="$1 - |$mean$|$", xlim=(0, spec.t1), ylim=(1e-10, 2))
        order.set_title(f"{spec.moved[0]} tokens on $S^{spec.moved[1] - 1}$: median, 2 % and 98 %")
        order.legend(loc="lower left")
    return page
