r"""Uniform numbers have mean $\tfrac12$ (arXiv:0000.00001): a study for the tests of the command line, in parts that may take a while.

As a script it is the command line with this study alone.
"""

import dataclasses
import os
import pathlib
import signal
import sys
import time
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.progress import track

import attnflow as af
from attnflow import studies
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Count
from attnflow.studies.tools.parts import parts

CLAIMS = {
    "mean": Claim(r"The mean of $n$ uniform numbers is near $\tfrac12$.", "arXiv:0000.00001, Theorem 1", "proved"),
    "variance": Claim(
        "Their variance is near 1/12.",
        "arXiv:0000.00002",
        "misprint",
        "a variance <b>below</b> 1/6 & no more",
        "It is $\\int (x - \\tfrac12)^2 dx$.",
        "We are sure.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many, how well."""

    n: Count = 40
    """how many numbers in each part"""
    eps: float = 0.2
    """how far the moments may be off"""
    seed: int = 0
    """the seed"""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Of each part."""

    means: Float[np.ndarray, " parts"]
    variances: Float[np.ndarray, " parts"]


@dataclasses.dataclass(frozen=True)
class Result:
    """The numbers, their moments, and the first of each part by name."""

    spec: Spec
    values: Float[np.ndarray, "parts n"]
    moments: Moments
    first: dict[str, float]


FAST = Spec(n=20, seed=3)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    spec = Spec() if spec is None else spec
    if spec.n == 13:
        raise ValueError("n must not be 13, got 13")
    values = np.stack(parts(lambda k: draw(spec, k), range(6), "draws", progress))
    moments = Moments(values.mean(axis=1), values.var(axis=1))
    return Result(spec, values, moments, {f"part {k}": float(row[0]) for k, row in enumerate(values)})


def draw(spec: Spec, k: int) -> np.ndarray:
    time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
    return np.random.default_rng([spec.seed, k]).uniform(size=spec.n)


def checks(result: Result) -> list[Check]:
    eps = result.spec.eps
    return [
        *(Check(f"mean of part {k}", float(mean), 0.5, eps, "mean") for k, mean in enumerate(result.moments.means)),
        Check(r"variance, $\sigma^2$", float(result.values.var()), 1 / 12, eps, "variance"),
        Check("numbers are finite (1: yes)", float(np.isfinite(result.values).all()), 1.0, 0.0),
    ]


def measured(result: Result) -> dict[str, Any]:
    return {"mean": result.values.mean(), "means": result.moments.means, "lost": float("nan")}


def figure(result: Result) -> Any:
    page = af.plot.new_figure(2.0, 1.5)
    page.add_subplot().plot(result.moments.means)
    return page


def movie(result: Result, file: pathlib.Path) -> None:
    """No movie, but it shows its progress like one."""
    for _ in track(range(2), "movie"):
        file.write_bytes(b"frames")


def studies_with_this() -> dict[str, Any]:
    return {"fake": sys.modules[__name__]}


if __name__ == "__main__":
    from attnflow.cli import main

    # A process that is begun in the background ignores Ctrl-C, and so do those that it begins.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    studies.studies = studies_with_this
    sys.exit(main())
