"""Atari 2600: Breakout in the Arcade Learning Environment, whose package brings the game along."""

from typing import Any

import numpy as np

from ergometer.core.dataset import Dataset, Request
from ergometer.core.errors import UnavailableError
from ergometer.data._files import need_packages, probe_packages
from ergometer.data._replay import Frame, Replay, world_size

_GAME = "ALE/Breakout-v5"
_ACTIONS = 4
_FRAME_SKIP = 4
_PACKAGES = ("gymnasium", "ale-py", "pillow")


class Atari:
    """The game in grey, each action held for four frames."""

    actions = _ACTIONS

    def __init__(self, size: tuple[int, int], seed: int):
        import ale_py
        import gymnasium

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        gymnasium.register_envs(ale_py)
        try:
            self._game: Any = gymnasium.make(_GAME, obs_type="grayscale", frameskip=_FRAME_SKIP)
        except (gymnasium.error.Error, OSError, RuntimeError) as error:
            raise UnavailableError(
                f"{_GAME} does not start ({error}): install it again with pip install --force-reinstall ale-py"
            ) from error
        self._size = size
        self._seed: int | None = seed

    def reset(self) -> Frame:
        frame, _ = self._game.reset(seed=self._seed)
        self._seed = None  # only the first episode is seeded; the others follow from it
        return self._fit(frame)

    def act(self, action: int) -> tuple[Frame, float, bool, bool]:
        frame, reward, done, cut, _ = self._game.step(action)
        return self._fit(frame), float(reward), bool(done), bool(cut)

    def _fit(self, frame: Frame) -> Frame:
        from PIL import Image

        height, width = self._size
        return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))


def open_atari(request: Request) -> Replay:
    need_packages("atari", *_PACKAGES)
    return Replay(request, Atari(world_size("atari", request, _ACTIONS), request.seed))


DATASET = Dataset(
    name="atari",
    title="Atari 2600, Breakout",
    tasks=("control",),
    open=open_atari,
    probe=lambda: probe_packages("atari", *_PACKAGES),
)
