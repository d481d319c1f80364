"""Char-CNN as TX2 describes it: a convolution over characters, then an LSTM, that predict the next character."""

from typing import TYPE_CHECKING

from ergometer.core.model import Field, Model

if TYPE_CHECKING:
    import torch
    from torch import nn

_WIDTH = 256
_HIDDEN = 384
_KERNEL = 5


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn
    from torch.nn import functional

    class CharCnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(classes, 64)
            self.conv = nn.Conv1d(64, _WIDTH, _KERNEL)
            self.relu = nn.ReLU()
            self.lstm = nn.LSTM(_WIDTH, _HIDDEN, batch_first=True)
            self.fc = nn.Linear(_HIDDEN, classes)

        def forward(self, text: "torch.Tensor") -> "torch.Tensor":
            x = self.embedding(text).transpose(1, 2)
            x = functional.pad(x, (_KERNEL - 1, 0))  # only on the left: a character must not see those after it
            x, _ = self.lstm(self.relu(self.conv(x)).transpose(1, 2))
            return self.fc(x)  # type: ignore[no-any-return]

    return CharCnn()


def layout(input: tuple[int, ...], classes: int) -> tuple[Field, ...]:
    return Field("text", input, classes), Field("label", input, classes)


MODEL = Model(
    name="char_cnn",
    title="Char-CNN (convolution + LSTM)",
    task="character prediction",
    input=(64,),
    classes=65,
    build=build,
    parameters=1_097_473,
    macs=69_754_880,
    layout=layout,
    largest=4096,
    papers={"TX2": "1M parameters and 23M operations stated; the layers are not, so widths are chosen to be near"},
)
