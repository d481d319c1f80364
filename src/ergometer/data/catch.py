"""Catch: a ball falls, a paddle must be under it. A small game that needs no download and no other package."""

import numpy as np

from ergometer.core.dataset import Dataset, Request
from ergometer.data._replay import Frame, Replay, world_size

_MOVES = (0, -1, 1)  # stay, left, right; any further action does nothing
_CELLS = 21  # a side
_REACH = 1  # cells that the paddle covers on either side of its middle


class Catch:
    """The ball drifts sideways, bounces off the walls and is worth 1 if caught, -1 if not."""

    def __init__(self, size: tuple[int, int], actions: int, seed: int):
        self.actions = actions
        self._random = np.random.default_rng(seed)
        # Pixels where each cell begins; the last is where the field ends.
        self._rows, self._columns = (np.arange(_CELLS + 1) * side // _CELLS for side in size)
        self._size = size

    def reset(self) -> Frame:
        self._row = 0
        self._column = int(self._random.integers(_CELLS))
        self._drift = int(self._random.integers(-1, 2))
        self._paddle = _CELLS // 2
        return self._draw()

    def act(self, action: int) -> tuple[Frame, float, bool, bool]:
        self._paddle = min(
            max(self._paddle + (_MOVES[action] if action < len(_MOVES) else 0), _REACH), _CELLS - 1 - _REACH
        )
        if not 0 <= self._column + self._drift < _CELLS:
            self._drift = -self._drift
        self._column += self._drift
        self._row += 1
        if self._row < _CELLS - 1:
            return self._draw(), 0.0, False, False
        caught = abs(self._column - self._paddle) <= _REACH
        return self._draw(), 1.0 if caught else -1.0, True, True

    def _draw(self) -> Frame:
        frame = np.zeros(self._size, np.uint8)
        rows, columns = self._rows, self._columns
        frame[rows[-2] :, columns[self._paddle - _REACH] : columns[self._paddle + _REACH + 1]] = 128
        frame[rows[self._row] : rows[self._row + 1], columns[self._column] : columns[self._column + 1]] = 255
        return frame


def open_catch(request: Request) -> Replay:
    size = world_size("catch", request, actions=0, smallest=_CELLS)
    actions = next(field.high for field in request.fields if field.name == "action")
    return Replay(request, Catch(size, actions or len(_MOVES), request.seed))


DATASET = Dataset(name="catch", title="a small game: catch the ball", tasks=("control",), open=open_catch)
