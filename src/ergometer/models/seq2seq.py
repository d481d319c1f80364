"""Translation by LSTM encoder, LSTM decoder and Luong attention, with the vocabularies of Stanford's IWSLT15."""

from typing import TYPE_CHECKING

from ergometer.core.model import Field, Model

if TYPE_CHECKING:
    import torch
    from torch import nn

_SOURCE_WORDS = 17191


def build(input: tuple[int, ...], classes: int, width: int) -> "nn.Module":
    import torch
    from torch import nn

    class Seq2seq(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.Embedding(_SOURCE_WORDS, width)
            self.encoder = nn.LSTM(width, width, num_layers=2, batch_first=True)
            self.target = nn.Embedding(classes, width)
            self.decoder = nn.LSTM(width, width, num_layers=2, batch_first=True)
            self.score = nn.Linear(width, width, bias=False)
            self.combine = nn.Linear(2 * width, width, bias=False)
            self.fc = nn.Linear(width, classes)
            # Two LSTMs leave small values; raised here, thousands of words are learnt at the usual learning rate.
            nn.init.normal_(self.combine.weight, std=0.6)

        def forward(self, source: "torch.Tensor", target: "torch.Tensor") -> "torch.Tensor":
            memory, state = self.encoder(self.source(source))
            x, _ = self.decoder(self.target(target), state)
            weights = (self.score(x) @ memory.transpose(1, 2)).softmax(-1)
            x = torch.tanh(self.combine(torch.cat([weights @ memory, x], -1)))
            return self.fc(x)  # type: ignore[no-any-return]

    return Seq2seq()


def layout(input: tuple[int, ...], classes: int, width: int) -> tuple[Field, ...]:
    return Field("source", input, _SOURCE_WORDS), Field("target", input, classes), Field("label", input, classes)


MODEL = Model(
    name="seq2seq",
    title="seq2seq, attention LSTM translation",
    task="translation",
    input=(50,),
    classes=7709,
    build=build,
    parameters=25_894_941,
    macs=658_662_400,
    layout=layout,
    options={"width": 512},
    largest=1024,
    papers={"TX2": "348M parameters and 28G operations stated; the layers are not"},
)
