"""Free room on a canvas: boxes that must not overlap, found by a grid."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

Box = tuple[float, float, float, float]
"""Left, top, width, height."""
_CELL: Final = 400.0
_MOST_CELLS: Final = 4_000
"""Cells of one box; a larger one is compared with every box."""
_TRIES: Final = 60


class SpatialGrid:
    """The boxes on a canvas.

    Args:
        gap: horizontal and vertical distance that boxes keep.
    """

    def __init__(self, gap: tuple[float, float]) -> None:
        self._gap = gap
        self.boxes: list[Box] = []
        self._grid: dict[tuple[int, int], list[int]] = {}
        self._large: list[int] = []
        self.bounds: Box = (0.0, 0.0, 0.0, 0.0)
        """(left, top, right, bottom) of all boxes."""

    def add(self, box: Box) -> None:
        """Occupy a box."""
        at = len(self.boxes)
        self.boxes.append(box)
        right, bottom = box[0] + box[2], box[1] + box[3]
        if at:
            left, top, most_right, most_bottom = self.bounds
            self.bounds = min(left, box[0]), min(top, box[1]), max(most_right, right), max(most_bottom, bottom)
        else:
            self.bounds = box[0], box[1], right, bottom
        cells = _cells(box)
        if cells is None:
            self._large.append(at)
        else:
            for cell in cells:
                self._grid.setdefault(cell, []).append(at)

    def nearest(self, box: Box) -> tuple[float, float]:
        """The upper left corner of the free place nearest to `box`, above or below it; else under everything."""
        x, y, width, height = box
        up = down = y
        for _ in range(_TRIES):
            if (hit := self._hit((x, down, width, height))) is None:
                break
            down = hit[1] + hit[3] + self._gap[1]
        else:
            down = math.inf
        for _ in range(_TRIES):
            if (hit := self._hit((x, up, width, height))) is None:
                break
            up = hit[1] - height - self._gap[1]
        else:
            up = -math.inf
        if math.isinf(down) and math.isinf(up):
            return x, self.bounds[3] + self._gap[1]
        return x, down if down - y <= y - up else up

    def _hit(self, box: Box) -> Box | None:
        """A box that is too close to this one."""
        x, y, width, height = box
        wide = (x - self._gap[0] / 2, y - self._gap[1] / 2, width + self._gap[0], height + self._gap[1])
        cells = _cells(wide)
        near: Iterable[int] = range(len(self.boxes))
        if cells is not None:
            near = [*self._large, *(at for cell in cells for at in self._grid.get(cell, ()))]
        for at in near:
            left, top, other_width, other_height = self.boxes[at]
            if (
                left < wide[0] + wide[2] and wide[0] < left + other_width
                and top < wide[1] + wide[3] and wide[1] < top + other_height
            ):  # fmt: skip
                return self.boxes[at]
        return None


def _cells(box: Box) -> list[tuple[int, int]] | None:
    """The cells of the grid that a box touches; None: too many."""
    columns = range(math.floor(box[0] / _CELL), math.floor((box[0] + box[2]) / _CELL) + 1)
    rows = range(math.floor(box[1] / _CELL), math.floor((box[1] + box[3]) / _CELL) + 1)
    return [(column, row) for column in columns for row in rows] if len(columns) * len(rows) <= _MOST_CELLS else None


def bounding_box(boxes: Iterable[Box]) -> Box:
    """The smallest box around others."""
    found = list(boxes)
    left, top = min(box[0] for box in found), min(box[1] for box in found)
    return left, top, max(box[0] + box[2] for box in found) - left, max(box[1] + box[3] for box in found) - top
