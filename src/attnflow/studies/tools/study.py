"""What a study is."""

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from attnflow.studies.tools.check import Check, Claim

if TYPE_CHECKING:
    import matplotlib.figure

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
R = TypeVar("R")


@runtime_checkable
class Experiment(Protocol[S_contra, R]):
    """What can be run, checked, drawn and reported: a study, or a simulation from a file.

    - Its docstring begins with one line, the title.
    - `CLAIMS`: what of the literature it takes up, from short keys to `Claim`s; the ledger has them as `study/key`.
    - `run(spec, progress) -> result`: the computation, in `parts`; `ValueError` if what it is given turns out to make no sense. The
      spec and the result are frozen dataclasses; `data.zarr` has the arrays of the result.
    - `checks(result)`: what must hold, each known from elsewhere than the code that it checks, under the key of its claim.
    - `measured(result)`: plain numbers for the record.
    - `figure(result)`: a figure, or several by name.
    - `movie(result, file)`, optional and therefore no member: writes an mp4.
    """

    __doc__: str | None
    CLAIMS: dict[str, Claim]

    def run(self, spec: S_contra, progress: bool = False) -> R: ...

    def checks(self, result: R) -> list[Check]: ...

    def measured(self, result: R) -> dict[str, Any]: ...

    def figure(self, result: R) -> "matplotlib.figure.Figure | dict[str, matplotlib.figure.Figure]": ...


@runtime_checkable
class Study(Experiment[S, R], Protocol):
    """An experiment that takes up claims of the literature: a module of `attnflow.studies`, one file per published figure or claim.

    Its docstring begins with the claim and its citation. Beside the members of an `Experiment` it has

    - `Spec`: a frozen dataclass of parameters, the source's own as defaults, with their constraints in the annotations
      (`attnflow.studies.tools.constraints.Checked`); a study with random numbers has a `seed`;
    - `FAST`: a spec that takes seconds and at which all checks hold.
    """

    Spec: type[S]
    FAST: S


def figures(study: Experiment[Any, R], result: R) -> "dict[str, matplotlib.figure.Figure]":
    """The figures of a study by name; a single one is named `figure`."""
    drawn = study.figure(result)
    return drawn if isinstance(drawn, dict) else {"figure": drawn}


if TYPE_CHECKING:
    # Every study is a `Study`, and its members agree on what a spec and a result are: the type checker verifies it here.
    from attnflow.studies import (
        blocks,
        bridges,
        centers,
        circle,
        clustering,
        cold,
        consensus,
        context,
        demo,
        depth,
        equiangular,
        fashion,
        gaussians,
        geometries,
        heat,
        hemisphere,
        iterations,
        langevin,
        lipschitz,
        masked,
        meaning,
        metastable,
        middle,
        minilm,
        mixture,
        normalization,
        particles,
        phase,
        pictures,
        rank,
        resnet,
        scores,
        subsample,
        support,
        transition,
    )

    def conforms(study: Study[S, R]) -> None: ...

    conforms(blocks)
    conforms(bridges)
    conforms(centers)
    conforms(circle)
    conforms(clustering)
    conforms(cold)
    conforms(consensus)
    conforms(context)
    conforms(demo)
    conforms(depth)
    conforms(equiangular)
    conforms(fashion)
    conforms(gaussians)
    conforms(geometries)
    conforms(heat)
    conforms(hemisphere)
    conforms(iterations)
    conforms(langevin)
    conforms(lipschitz)
    conforms(masked)
    conforms(meaning)
    conforms(metastable)
    conforms(middle)
    conforms(minilm)
    conforms(mixture)
    conforms(normalization)
    conforms(particles)
    conforms(phase)
    conforms(pictures)
    conforms(rank)
    conforms(resnet)
    conforms(scores)
    conforms(subsample)
    conforms(support)
    conforms(transition)
