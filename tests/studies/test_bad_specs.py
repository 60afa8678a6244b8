"""Specs that make no sense are refused, in every study, with a line that says what is wrong."""

import math

import pytest

from attnflow.studies import studies

# By study: values of a spec, and what is said of them.
BAD: dict[str, list[tuple[dict[str, object], str]]] = {
    "blocks": [
        ({"n": 2}, "n must be at least 4"),
        ({"noise": 2.0}, "noise must be from 0 to 1"),
        ({"compared": 30.0}, "compared must lie between 0 and t1"),
        ({"depths": (10, 20)}, "depths must be at least three whole numbers of at least 5, rising"),
    ],
    "bridges": [
        ({"deviations": (0.0,)}, "deviations must be one or more positive numbers"),
        ({"eps": (0.1, 0.2, 0.3)}, "eps must be at least three numbers"),
        ({"nodes": 10}, "nodes must be at least 100, got 10"),
    ],
    "centers": [
        ({"deltas": (4.0,)}, "deltas must be one or more numbers between 0 and 3.14159"),
        ({"times": (1.0, 2.0)}, "times must be at least two numbers, rising, the first 0"),
    ],
    "circle": [
        ({"beta": 0.0}, "beta must be positive and finite, got 0.0"),
        ({"betas": ()}, r"betas must be one or more positive numbers, got \[\]"),
        ({"amplitude": 1e-3}, "so that there is a linear phase, got 0.001"),
        ({"rough": 1.0}, "rough must lie between 0 and 0.1, got 1.0"),
        ({"cells": 32}, "cells must be at least 64, got 32"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"dims": (2, 3)}, r"dims must be whole numbers of at least 3, got \[2, 3\]"),
    ],
    "clustering": [
        ({"tokens": 2}, "tokens must be at least 4"),
        ({"beta": 0.0}, "beta must be positive"),
        ({"radius": 0.9}, "radius must lie between"),
    ],
    "cold": [
        ({"betas": (8.0, 16.0, 32.0)}, "betas must be at least four positive numbers, rising"),
        ({"betas": (8.0, 16.0, 32.0, 48.0)}, "rising, in geometric progression"),
        ({"t2": 0.0}, "t2 must be positive and finite, got 0.0"),
        ({"frequency": 2}, "frequency must be at least 4, got 2"),
        ({"tokens": (4, 16)}, r"tokens must be whole numbers of at least 8, none or several, got \[4, 16\]"),
        ({"spaces": ("S^2",)}, r"spaces must be names, each circle, S\^2, R\^4 or R\^8, circle among them, got \['S\^2'\]"),
        ({"cold": ()}, r"cold must be one or more positive numbers, got \[\]"),
    ],
    "consensus": [
        ({"n": 2}, "n must be at least 8"),
        ({"betas": (1.0, 10.0, 20.0)}, "betas must be at least three positive numbers, rising, the last from 100 to 3000"),
        ({"beta": 0.0}, "beta must be positive and finite, got 0.0"),
    ],
    "context": [
        ({"cosine": 1.0}, "cosine must lie between 0 and 1"),
        ({"tokens": (1,)}, "tokens must be one or more whole numbers of at least 2"),
    ],
    "demo": [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"frames": 5}, "frames must be at least 6, got 5"),
        ({"seed": -1}, "seed must be at least 0 and below 4294967296, got -1"),
        ({"seed": 2**32}, "seed must be at least 0 and below 4294967296, got 4294967296"),
        ({"beta": 0.0}, "beta must be positive and finite, got 0.0"),
        ({"t1": math.inf}, "t1 must be positive and finite, got inf"),
        ({"t1": math.nan}, "t1 must be positive and finite, got nan"),
    ],
    "depth": [
        ({"sentences": 0}, "sentences must be from 1 to 12, got 0"),
        ({"steps": (1, 2, 3, 4)}, "steps must be"),
    ],
    "equiangular": [
        ({"n": 1}, "n must be at least 2"),
        ({"betas": (-1.0,)}, "betas must be one or more numbers from 0 to 6"),
        ({"gap": 1e-12}, "gap must be from 1e-10"),
        ({"beta": 0.0}, "beta must be positive"),
    ],
    "fashion": [
        ({"n": 1}, "n must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"eps": -1.0}, "eps must be positive and finite, got -1.0"),
        ({"pixels": math.nan}, "pixels must be positive and finite, got nan"),
    ],
    "gaussians": [
        ({"draws": 0}, "draws must be at least 1"),
        ({"nodes": 4}, "nodes must be at least 24"),
        ({"dims": (1,)}, "dims must be one or more whole numbers of at least 2"),
        ({"longer": 0.5}, "longer must lie between 1 and 10"),
    ],
    "geometries": [
        ({"starts": 0}, "starts must be at least 1, got 0"),
        ({"t1": float("inf")}, "t1 must be at least 1 and finite, got inf"),
        ({"dims": (2, 4)}, r"dims must be one or more whole numbers, each 2 or 3, got \[2, 4\]"),
    ],
    "heat": [
        ({"t1": 0.0}, "t1 must be positive and finite, got 0.0"),
        ({"steps": (4, 8)}, r"steps must be at least three whole numbers of at least 1, all different, got \[4, 8\]"),
        (
            {"plane_steps": (0, 1, 2)},
            r"plane_steps must be whole numbers of at least 1, all different, none .* got \[0, 1, 2\]",
        ),
        ({"nodes": 3}, "nodes must be at least 16, got 3"),
    ],
    "hemisphere": [
        ({"draws": 4}, "draws must be at least 32"),
        ({"moved": (7, 3)}, "moved must be one of"),
    ],
    "iterations": [
        ({"n": 1}, "n must be at least 2"),
        ({"betas": (5.0, 1.0)}, "betas must be one or more positive numbers, rising"),
        ({"half_steps": (1, 2, 5)}, "half_steps must be at least three whole numbers of at least 1, rising, odd"),
        ({"half_steps": (1, 3, 7)}, "5 among them"),
        ({"causal": 100}, "causal must be from 2 to 16"),
    ],
    "langevin": [
        ({"eps": (0.4, 0.2, 0.1)}, "at least four positive numbers, falling"),
        ({"eps": (0.4, 0.2, 0.1, 0.2)}, "at least four positive numbers, falling"),
        ({"eps": (0.4, 0.2, 0.1, 0.09)}, "falling, in geometric progression"),
        ({"nodes": 3}, "nodes must be at least 16, got 3"),
    ],
    "lipschitz": [
        ({"lengths": (4, 4, 8)}, "lengths must be at least three whole numbers of at least 2, all different"),
        ({"radii": (0.0, 1.0, 2.0)}, "radii must be at least three positive numbers, all different"),
        ({"radius": 2.0}, "radius.2 / 4 must be at least 6"),
        ({"draws": 0}, "draws must be at least 1"),
    ],
    "masked": [
        ({"t1": -1.0}, "t1 must be positive and finite, got -1.0"),
        (
            {"cells": (50, 100, 150, 200)},
            r"cells must be at least four multiples of 2 of at least 4, each twice the one before, got \[50, 100, 150, 200\]",
        ),
        (
            {"order_cells": (6, 12, 24, 48)},
            r"order_cells must be at least four positive multiples of 4, .* got \[6, 12, 24, 48\]",
        ),
        ({"tokens": (500, 1000)}, "tokens must be at least three whole numbers of at least 100, all different"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
    ],
    "meaning": [
        ({"sentences": 3}, "sentences must be from 4 to 12, got 3"),
        ({"permutations": 10}, "permutations must be at least 100, got 10"),
    ],
    "metastable": [
        ({"angles": (0.0, 1.0, 1.0)}, "angles must be at least three numbers, all different on the circle"),
        ({"betas": (5.0,)}, "betas must be one or more numbers of at least 50, where clusters are apart"),
    ],
    "middle": [
        ({"beta": 0.0}, "beta must be positive"),
        ({"tokens": (128,)}, "tokens must be at least two whole numbers of at least 32, rising"),
        ({"sources": 100}, "sources must be at most half the tokens"),
        ({"times": (2.0, 1.0)}, "times must be one or more positive numbers, rising"),
        ({"depths": (0.5, 1.0)}, "depths must rise, all but the last below 1.73"),
    ],
    "minilm": [({"sentences": 1}, "sentences must be from 2 to 12, got 1")],
    "mixture": [
        ({"eps": 0.0}, "eps must be positive and finite, got 0.0"),
        ({"t1": 0.01}, "t1 must be at least 4 eps, got t1 = 0.01 with eps = 0.01"),
        ({"n": 2}, "n must be at least 10, got 2"),
        ({"seed": -1}, "seed must be at least 0 and below 4294967296, got -1"),
    ],
    "normalization": [
        ({"n": 1}, "n must be at least 2"),
        ({"short": 50.0}, "short must be from 8 to 16"),
    ],
    "particles": [
        ({"n": 2}, "n must be at least 6"),
        ({"eps": 0.01}, "eps must be at least 0.25"),
        ({"steps": 5, "long": 3}, "long must be at least steps, got 3 and 5"),
    ],
    "phase": [
        ({"n": 1}, "n must be at least 2"),
        ({"dims": (8, 2)}, "dims must be one or more whole numbers of at least 2, rising"),
        ({"delta": 1.0}, "delta must lie between 0 and 1"),
        ({"t1": -1.0}, "t1 must be positive and finite, got -1.0"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"random_dim": 1}, "random_dim must be 0 or at least 2"),
    ],
    "pictures": [
        ({"cells": (50, 100)}, "cells must be at least three whole numbers of at least 32, each twice"),
        ({"cells": (50, 100, 150)}, "cells must be at least three whole numbers of at least 32, each twice"),
        ({"frequencies": (1, 2, 4)}, "frequencies must be at least three whole numbers of at least 2, each twice"),
        ({"tokens": (100, 200)}, "tokens must be at least three whole numbers of at least 100"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"cases": ("L3 on the line",)}, "cases must be one or more names, each softmax on the line, .* got"),
    ],
    "rank": [
        ({"n": 2}, "n must be at least 4, got 2"),
        ({"layers": 1}, "layers must be at least 3, got 1"),
        ({"sharpness": 0.0}, "sharpness must be positive"),
    ],
    "resnet": [
        ({"t1": 0.0}, "t1 must lie between 0 and 10"),
        ({"depths": (4, 8)}, "depths must be at least three whole numbers of at least 4, rising"),
        ({"cloud": 2}, "cloud must be at least 16"),
    ],
    "scores": [
        ({"n": (128,)}, "n must be at least two whole numbers of at least 2, rising"),
        ({"n": (128, 64)}, "n must be at least two whole numbers of at least 2, rising"),
        ({"halvings": 2}, "halvings must be at least 5, got 2"),
        ({"clouds": 1}, "clouds must be at least 2, got 1"),
        ({"largest_eps": -1.0}, "largest_eps must be positive and finite"),
    ],
    "subsample": [
        ({"draws": 2}, "draws must be at least 8, got 2"),
        ({"sizes": (4, 8)}, "sizes must be at least three"),
        ({"kept": (16, 8, 4)}, "kept must be"),
    ],
    "support": [
        ({"t1": 0.0}, "t1 must be positive and finite, got 0.0"),
        ({"cells": (100, 300)}, r"cells must be at least two whole numbers of at least 50, each twice the one before, got \[100, 300\]"),
        ({"shifts": (0.1, 0.2)}, "shifts must be at least three numbers between 0 and 0.5, all different"),
        ({"tokens": 10}, "tokens must be at least 100, got 10"),
        ({"laws": ("hardmax",)}, r"laws must be one or more names, each softmax, .* got \['hardmax'\]"),
    ],
    "transition": [
        ({"cells": 30}, "cells must be a multiple of 4 and at least 32, got 30"),
        ({"step": 0.0}, "step must lie between 0 and 0.5, got 0.0"),
        ({"tokens": 3}, "tokens must be 0 or at least 100, got 3"),
        ({"betas": 1}, "betas must be at least 2, got 1"),
        ({"dims": (3,)}, r"dims must be whole numbers of at least 2, 2 among them, got \[3\]"),
    ],
}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [pytest.param(name, *row, id=f"{name}-{'-'.join(row[0])}") for name, rows in BAD.items() for row in rows],
)
def test_a_bad_spec_is_refused(name, values, message):
    with pytest.raises(ValueError, match=message):
        studies()[name].Spec(**values)


def test_every_study_refuses_something():
    assert BAD.keys() == studies().keys()
