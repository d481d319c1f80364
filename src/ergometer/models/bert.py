"""BERT (Devlin et al. 2019) with a question answering head: where in the text the answer starts and ends."""

import math
from typing import TYPE_CHECKING

from ergometer.core.model import Field, Model

if TYPE_CHECKING:
    import torch
    from torch import nn

_VOCABULARY = 30522
_LONGEST = 512
# layers, width, heads; feed-forward layers are four times as wide
_SIZES = {"base": (12, 768, 12), "small": (4, 512, 8)}


def build(input: tuple[int, ...], classes: int, size: str) -> "nn.Module":
    import torch
    from torch import nn

    depth, width, heads = _SIZES[size]

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.output = nn.Linear(width, width)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: "torch.Tensor", bias: "torch.Tensor") -> "torch.Tensor":
            def split(tensor: "torch.Tensor") -> "torch.Tensor":
                return tensor.view(x.shape[0], x.shape[1], heads, width // heads).transpose(1, 2)

            query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
            scores = query @ key.transpose(2, 3) / math.sqrt(width // heads) + bias
            mixed = self.dropout(scores.softmax(-1)) @ value
            return self.output(mixed.transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.attention_norm = nn.LayerNorm(width, eps=1e-12)
            self.wide = nn.Linear(width, 4 * width)
            self.gelu = nn.GELU()
            self.narrow = nn.Linear(4 * width, width)
            self.norm = nn.LayerNorm(width, eps=1e-12)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: "torch.Tensor", bias: "torch.Tensor") -> "torch.Tensor":
            x = self.attention_norm(x + self.dropout(self.attention(x, bias)))
            return self.norm(x + self.dropout(self.narrow(self.gelu(self.wide(x)))))  # type: ignore[no-any-return]

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(_VOCABULARY, width)
            self.positions = nn.Embedding(_LONGEST, width)
            self.kinds = nn.Embedding(2, width)
            self.norm = nn.LayerNorm(width, eps=1e-12)
            self.dropout = nn.Dropout(0.1)
            self.blocks = nn.ModuleList([Block() for _ in range(depth)])
            self.answer = nn.Linear(width, classes)
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)

        def forward(self, tokens: "torch.Tensor", segments: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.words(tokens) + self.positions(places) + self.kinds(segments)
            x = self.dropout(self.norm(x))
            bias = (mask[:, None, None, :] - 1) * 1e9
            for block in self.blocks:
                x = block(x, bias)
            return self.answer(x).transpose(1, 2)  # type: ignore[no-any-return]

    return Bert()


def layout(input: tuple[int, ...], classes: int, size: str) -> tuple[Field, ...]:
    length = input[0]
    return (
        Field("tokens", input, _VOCABULARY),
        Field("segments", input, 2),
        Field("mask", input, 2),
        Field("label", (classes,), length),
    )


MODEL = Model(
    name="bert",
    title="BERT, question answering",
    task="question answering",
    input=(384,),
    classes=2,
    build=build,
    parameters=108_893_186,
    macs=35_333_406_720,
    layout=layout,
    options={"size": tuple(_SIZES)},
    smallest=8,
    rehearsal="size=small",
    largest=_LONGEST,
    papers={"TX2": "110M parameters stated: the published base network with its pooler, which answering does not use"},
)
