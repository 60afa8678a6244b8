"""What is drawn: the frames of a path, or one measure; and the contract of a drawing."""

import abc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Measure
from attnflow.plot.look import Axes

if TYPE_CHECKING:
    from typing import TypeAlias

    from matplotlib.figure import SubFigure

    # What a figure is made of: a path, or one measure.
    Shown: TypeAlias = Path | Measure
else:
    # As in `attnflow._types`: what does not fit is refused in words of our own.
    SubFigure = Shown = Any


class Frames:
    """The measures of a path and their times `ts`; a measure alone is the only frame, at time 0.

    **Arguments:** `most`, how many frames of a longer path there are, the first and the last among them; `tokens`, about how many tokens of
    more are drawn; `tail`, how many earlier frames leave a trail. All of them if not given.
    """

    def __init__(self, shown: Shown, *, most: int | None = None, tokens: int | None = None, tail: int | None = None):
        self._shown = shown if isinstance(shown, Path) else [shown]
        count = len(self._shown)
        self._rows = np.arange(count) if most is None or count <= most else np.linspace(0, count - 1, most).round().astype(int)
        self.ts: np.ndarray = np.asarray(shown.ts)[self._rows] if isinstance(shown, Path) else np.zeros(1)
        self.tokens: int | None = tokens
        self.tail: int = count if tail is None else tail

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Any:
        return self._shown[int(self._rows[i])]

    @property
    def chosen(self) -> list[int]:
        """Four frames that stand for all, or all if there are not so many."""
        return np.unique(np.linspace(0, len(self) - 1, 4).round().astype(int)).tolist()

    def stack(self, read: Callable[[Any], Any]) -> np.ndarray:
        """An array of every frame, `[t, ...]`."""
        return np.stack([np.asarray(read(mu), dtype=float) for mu in self])


def frames_of(name: str, shown: Shown | None, types: type | tuple[type, ...], due: str) -> Frames:
    """The frames of a path or of a measure, refused unless its measures are of these types."""
    if not isinstance(shown, Path):
        return Frames(check.measure(name, shown, types, due))
    check.path(name, shown, Path, types, due)
    return Frames(shown)


class Picture(abc.ABC):
    """How measures of one kind are drawn. `still` is enough; with `along` there is a figure of all frames in one.

    A class for measures of your own is made known to movies, summaries and notebooks by a function in `plot/pictures.py`.

    **Arguments:** `frames`, and the `options` of a subclass.
    """

    # What a user may say of the drawing.
    options: ClassVar[tuple[str, ...]] = ()
    # The size of a frame of a movie in inches, and the kind of axes.
    size: tuple[float, float] = (4.0, 4.0)
    projection: str | None = None
    # Whether all frames can be drawn in one, by `along`.
    in_one: bool = False

    def __init__(self, frames: Frames):
        self.frames: Frames = frames

    @abc.abstractmethod
    def still(self, ax: Axes, i: int) -> None:
        """Draw frame `i`, in scales that are the same for all frames."""

    def along(self, ax: Axes) -> None:
        """Draw all frames in one: time is an axis, or is told by shades."""
        raise NotImplementedError

    def key(self, axes: Axes | list[Axes]) -> None:
        """Draw beside the frames what is the same for all, such as a scale of colors."""
        return

    @property
    def layout(self) -> tuple[int, int]:
        """The rows and columns of frames in an overview: wide frames are in two rows."""
        count = 1 if self.in_one else len(self.frames.chosen)
        rows = 2 if count > 2 and self.size[0] > 1.5 * self.size[1] else 1
        return rows, -(-count // rows)

    @property
    def height(self) -> float:
        """The height of an overview in widths of a page."""
        rows, columns = self.layout
        return min(0.5, 1.1 * rows * self.size[1] / self.size[0] / columns)

    def overview(self, part: SubFigure) -> None:
        """Draw the path into a part of a figure: all frames in one, or four of them."""
        if self.in_one and len(self.frames) > 1:
            self.along(part.add_subplot())
            return
        axes = [part.add_subplot(*self.layout, k + 1, projection=self.projection) for k in range(len(self.frames.chosen))]
        for ax, i in zip(axes, self.frames.chosen):
            self.still(ax, i)
            if len(axes) > 1:
                self.title(ax, f"$t = {self.frames.ts[i]:.3g}$")
        self.key(axes)

    def title(self, ax: Axes, text: str) -> None:
        """Write above a frame; matplotlib leaves no room above a box in space, which has enough inside."""
        ax.set_title(text, y=0.96 if self.projection else None)
