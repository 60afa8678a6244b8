"""A simulation as a study: it is run, checked, drawn and reported like one."""

import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
import msgspec
import numpy as np

import attnflow as af
from attnflow.simulate import build
from attnflow.simulate.spec import Spec
from attnflow.studies import BadInput, Check


@dataclasses.dataclass(frozen=True)
class Result:
    """The path, and what was observed along it."""

    path: af.Path
    observed: dict[str, np.ndarray]


class Simulation:
    """A spec with the folder it lies in; `store` is where the states are written while it runs, and from where a run goes on."""

    def __init__(self, spec: Spec, folder: pathlib.Path, title: str, store: pathlib.Path | None = None):
        self.said, self.folder, self.store = spec, folder, store
        self.__doc__ = title

    def check(self) -> None:
        """Build everything and find the shape of the velocity: what does not fit together shows here, before anything runs."""
        with _refused("measure: "):
            mu = self.said.measure.build(self.said.seed, self.folder)
        with _refused("law: "):
            law = build.field(self.said, mu.dim)
            jax.eval_shape(lambda: mu.rate(law.at(mu, self.said.time.t0)))
        with _refused("output.observe: "):
            for observable in build.observables(self.said, law).values():
                jax.eval_shape(observable, mu)

    def run(self, spec: Any, progress: bool = False) -> Result:
        said, time = self.said, self.said.time
        with _in_memory():
            mu = said.measure.build(said.seed, self.folder)
            law = build.field(said, mu.dim)
            frames, length = np.linspace(0, 1, time.frames), time.t1 - time.t0
            if time.spacing == "log":
                frames = np.expm1(frames * np.log1p(length)) / length
            path = af.solve(
                *(law, mu, time.t1),
                t0=time.t0,
                save_at=np.append(time.t0 + length * frames[:-1], time.t1),
                rtol=time.rtol,
                atol=time.atol,
                noise=time.noise,
                key=None if time.noise is None else jax.random.key(said.seed + 2),
                max_steps=time.max_steps,
                until={"never": None, "steady": af.Steady(), "consensus": af.Consensus()}[time.until],
                observe=build.observables(said, law) or None,
                out=self.store,
                progress=progress,
            )
        observed = {name: np.asarray(values.values) for name, values in path.observed.items()}
        if "clusters" in said.output.observe:
            observed["clusters"] = np.array([len(af.clusters(path[i], said.output.radius).masses) for i in range(len(path))])
        return Result(path, {name: observed[name] for name in said.output.observe})

    def checks(self, result: Result) -> list[Check]:
        """What holds in every simulation: tokens stay on the sphere, mass stays one, and never negative."""
        return self.said.measure.checks(result.path)

    def measured(self, result: Result) -> dict[str, Any]:
        """How it ended, the solver's figures, and the observables at the end."""
        last = {name: values[-1] for name, values in result.observed.items() if len(values)}
        return {"status": str(result.path.status), "solver": result.path.stats} | {
            f"{name} at the end": value for name, value in last.items()
        }

    def figures(self, result: Result) -> dict[str, Any]:
        return {"figure": af.plot.summary(result.path, result.observed)}

    def movie(self, result: Result, file: pathlib.Path) -> None:
        af.plot.movie(result.path, file, progress=True)

    @property
    def moves(self) -> bool:
        """Whether there is something for a movie to show."""
        return self.said.moves


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The file, as the record has it."""

    spec: dict[str, Any]
    seed: int

    @classmethod
    def of(cls, spec: Spec) -> "Parameters":
        return cls(msgspec.to_builtins(spec), spec.seed)


@contextlib.contextmanager
def _refused(place: str) -> Any:
    """What the library refuses when it is given the parts of a file is the user's input; later, a wrong type is an error of ours."""
    with _in_memory(place):
        try:
            yield
        except (ValueError, TypeError, NotImplementedError) as error:
            raise BadInput(f"{place}{_line(error)}") from error


@contextlib.contextmanager
def _in_memory(place: str = "") -> Any:
    """What does not fit into memory is the user's input too."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            raise BadInput(f"{place}out of memory; lower measure.n, measure.dim, measure.cells or time.frames") from error
        raise


def _line(error: Exception) -> str:
    """One line, in which the cure stands last: a long one is cut in the middle."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 400 else f"{line[:250]} ... {line[-150:]}"
