"""Convolutions and matrix products on an accelerator, with their gradients: one kernel (product.cl) for all of them.

Each is the product of two matrices; what differs is where their elements are. The right matrix of a convolution is its
input seen through the window, which is never written down.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from math import prod
from typing import Any

from ergometer.engines.tinygrad._devices import Limits, limits_of

_GROUPS = 512  # of threads: what keeps a large GPU busy
_SHORTEST = 256  # terms of a sum that are worth a group of their own
_LOCAL = 2 * 8 * 2 * (128 + 4) * 4  # bytes that a group needs for its largest tiles; Ampere has room for twice that
_FEWEST, _LEAST = 64, 2 * 8 * 2 * (64 + 4) * 4  # threads of a group, and bytes, for tiles of 64
_MOST = 2**16  # groups that CUDA has in the second and third direction
_LARGEST = 2**31  # elements that the kernel's indices can tell apart


@dataclass(frozen=True)
class _Window:
    """Of a convolution from (batch, C, H, W) to (batch, O, OH, OW); its constants have the names of the kernel's."""

    batch: int
    C: int
    H: int
    W: int
    O: int  # noqa: E741
    OH: int
    OW: int
    KH: int
    KW: int
    SH: int
    SW: int
    DH: int
    DW: int
    TOP: int
    LEFTMOST: int


@dataclass(frozen=True)
class _Matrix:
    """Where an element is: C code that sets `at` and may clear `ok`; and whether neighbours along K are neighbours."""

    code: str
    along_k: bool


_LEFT, _LEFT_TURNED = _Matrix("at = m * K + k;", True), _Matrix("at = k * M + m;", False)
_RIGHT, _RIGHT_TURNED = _Matrix("at = k * N + n;", False), _Matrix("at = n * K + k;", True)
_IMAGE = _Matrix("at = (k / (OH * OW) * M + m) * (OH * OW) + k % (OH * OW);", True)
_SEEN = (  # the input that an output's tap sees, in one of the channels
    "int r = {place} % (OH * OW), t = {tap}, c = {inner} - t * C;"
    " int y = r / OW * SH - TOP + t / KW * DH, x = r % OW * SW - LEFTMOST + t % KW * DW;"
    " ok = ok && y >= 0 && y < H && x >= 0 && x < W;"
    " at = (({place} / (OH * OW) * C + c) * H + y) * W + x;"
)
_SEEN_RIGHT = _Matrix(_SEEN.format(place="n", inner="k", tap="OF_K(C)"), False)
_SEEN_TURNED = _Matrix(_SEEN.format(place="k", inner="n", tap="OF_N(C)"), True)
_SEEING = _Matrix(  # the output whose tap sees an input
    "int r = n % (H * W), t = OF_K(O), o = k - t * O;"
    " int y = r / W + TOP - t / KW * DH, x = r % W + LEFTMOST - t % KW * DW;"
    " ok = ok && y >= 0 && y % SH == 0 && y / SH < OH && x >= 0 && x % SW == 0 && x / SW < OW;"
    " at = ((n / (H * W) * O + o) * OH + y / SH) * OW + x / SW;",
    False,
)
_PLAIN = "m * N + n"
_Sizes = tuple[int, int, int]  # M, N and K
_Gradients = Callable[[Any, Any, Any], tuple[Any, Any]]  # of the result and both operands to those of the operands
# What a kernel of ours computes, and its sizes: the parts of its name.
NAME = re.compile(r"((?:conv|linear|matmul)[a-z_]*)_\d+_\d+_\d+_[0-9a-f]{8}")


def fits(limits: Limits, largest: int, rows: int, count: int) -> bool:
    """Whether a device can run the kernel for so many products of so many rows. largest: elements of any matrix."""
    able = limits.cpu or (limits.threads >= _FEWEST and limits.local >= _LEAST)
    return able and largest < _LARGEST and rows < 32 * _MOST and count < _MOST


@dataclass(frozen=True)
class Products:
    """tf32: an accelerator that can, multiplies what it has rounded to 10 bits, and adds in single precision."""

    tf32: bool = False

    def conv(self, x: Any, weight: Any, stride: Sequence[int], dilation: Sequence[int], padding: Sequence[int]) -> Any:
        """A convolution without groups. padding: at the top, left, bottom and right."""
        (batch, c, h, w), (o, _, kh, kw) = x.shape, weight.shape
        (sh, sw), (dh, dw), (top, left, bottom, right) = stride, dilation, padding
        oh = (h + top + bottom - dh * (kh - 1) - 1) // sh + 1
        ow = (w + left + right - dw * (kw - 1) - 1) // sw + 1
        window = _Window(batch, c, h, w, o, oh, ow, kh, kw, sh, sw, dh, dw, top, left)
        return self._outputs(x, weight.permute(0, 2, 3, 1), window)

    def _outputs(self, x: Any, filters: Any, w: _Window) -> Any:
        """filters: (O, KH, KW, C), so that one tap sees many channels, which takes less arithmetic to find."""

        def gradients(y: Any, filters: Any, x: Any) -> tuple[Any, Any]:
            return self._filters(y, x, w), self._inputs(y, filters, w)

        sizes = w.O, w.batch * w.OH * w.OW, w.KH * w.KW * w.C
        shape, out = (w.batch, w.O, w.OH, w.OW), _channels("OH * OW")
        return self._product("conv", filters, x, _LEFT, _SEEN_RIGHT, out, sizes, shape, asdict(w), gradients)

    def _inputs(self, y: Any, filters: Any, w: _Window) -> Any:
        sizes = w.C, w.batch * w.H * w.W, w.KH * w.KW * w.O
        shape, what, turned = (w.batch, w.C, w.H, w.W), "conv_input_gradient", filters.permute(3, 1, 2, 0)
        return self._product(what, turned, y, _LEFT, _SEEING, _channels("H * W"), sizes, shape, asdict(w))

    def _filters(self, y: Any, x: Any, w: _Window) -> Any:
        sizes = w.O, w.KH * w.KW * w.C, w.batch * w.OH * w.OW
        shape, what = (w.O, w.KH, w.KW, w.C), "conv_filter_gradient"
        return self._product(what, y, x, _IMAGE, _SEEN_TURNED, _PLAIN, sizes, shape, asdict(w))

    def linear(self, x: Any, weight: Any) -> Any:
        """Rows by the rows of a weight."""
        (rows, ins), outs = x.shape, weight.shape[0]

        def gradients(y: Any, x: Any, weight: Any) -> tuple[Any, Any]:
            inner = self._matrices("linear_input_gradient", y, weight, _LEFT, _RIGHT, (rows, ins, outs))
            return inner, self._matrices("linear_weight_gradient", y, x, _LEFT_TURNED, _RIGHT, (outs, ins, rows))

        return self._matrices("linear", x, weight, _LEFT, _RIGHT_TURNED, (rows, outs, ins), gradients)

    def matmul(self, a: Any, b: Any) -> Any:
        """Matrices, or as many on either side."""
        m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]

        def gradients(y: Any, a: Any, b: Any) -> tuple[Any, Any]:
            left = self._matrices("matmul_left_gradient", y, b, _LEFT, _RIGHT_TURNED, (m, k, n))
            return left, self._matrices("matmul_right_gradient", a, y, _LEFT_TURNED, _RIGHT, (k, n, m))

        return self._matrices("matmul", a, b, _LEFT, _RIGHT, (m, n, k), gradients)

    def _matrices(
        self,
        what: str,
        a: Any,
        b: Any,
        left: _Matrix,
        right: _Matrix,
        sizes: _Sizes,
        gradients: _Gradients | None = None,
    ) -> Any:
        return self._product(what, a, b, left, right, _PLAIN, sizes, (*a.shape[:-2], *sizes[:2]), {}, gradients)

    def _product(
        self,
        what: str,
        a: Any,
        b: Any,
        left: _Matrix,
        right: _Matrix,
        out: str,
        sizes: _Sizes,
        shape: tuple[int, ...],
        constants: dict[str, int],
        gradients: _Gradients | None = None,
    ) -> Any:
        from tinygrad import Device, Tensor

        a, b = (tensor if isinstance(tensor, Tensor) else Tensor(tensor) for tensor in (a, b))
        device = a.device
        m, n, k = sizes
        batch = prod(shape) // (m * n)
        tiles = _tiles(m, n, k, batch, limits_of(device), self.tf32)
        parts = tiles["PARTS"]
        defined = {"M": m, "N": n, "K": k, **tiles, **constants, "LEFT": left.code, "RIGHT": right.code, "OUT": out}
        defined |= {"LEFT_ALONG_K": int(left.along_k), "RIGHT_ALONG_K": int(right.along_k)}
        lines = "".join(f"#define {name} {value}\n" for name, value in defined.items())
        name = f"{what}_{m}_{n}_{k}_{sha256(lines.encode()).hexdigest()[:8]}"
        source = f"#define NAME {name}\n{lines}{_kernel()}"
        groups = (-(-n // tiles["TN"]), -(-m // tiles["TM"]), parts * batch)

        def program(*arguments: Any) -> Any:
            from tinygrad.renderer import Estimates
            from tinygrad.uop.ops import KernelInfo, Ops, ProgramInfo, UOp

            work = Estimates(ops=2 * m * n * k * batch)
            held = [next(part for part in argument.toposort() if part.op is Ops.PARAM) for argument in arguments]
            sink = UOp.sink(*held, arg=KernelInfo(name=name, estimates=work))
            info = ProgramInfo(
                name, groups, (tiles["THREADS"], 1, 1), (), (0, 1, 2), (0,), (1, 2), Device[device].renderer.target
            )
            listed = UOp(Ops.LINEAR, src=(*held, sink))
            return UOp(Ops.PROGRAM, src=(sink, listed, UOp(Ops.SOURCE, arg=source)), arg=info)

        def backward(y: Any, call: Any) -> tuple[Any, ...]:
            """A sum's gradient is the same for each of its parts: that of the first is taken."""
            assert gradients is not None
            whole = Tensor(y).reshape(batch, parts, m * n)[:, 0].reshape(shape).contiguous()
            taken = gradients(whole, *(Tensor(operand) for operand in call.src[2:]))
            return None, *(gradient.uop for gradient in taken)

        empty = Tensor.empty(batch, parts, m * n, device=device)
        made = empty.custom_kernel(
            a.contiguous(), b.contiguous(), fxn=program, grad_fxn=backward if gradients else None
        )
        return (made[0].sum(1) if parts > 1 else made[0]).reshape(shape)


def _channels(places: str) -> str:
    """Where in an image a row, which is a channel, and a column, which is a place in one of the images, are."""
    return f"(n / ({places}) * M + m) * ({places}) + n % ({places})"


def _tiles(m: int, n: int, k: int, batch: int, limits: Limits, tf32: bool) -> dict[str, int]:
    """How the work is divided: TM x TN x TK for a group of threads, of which each has RM x RN; and K into parts, where
    there would be too few groups."""
    largest = 128 if limits.cpu or (limits.threads >= 256 and limits.local >= _LOCAL) else 64
    tm, tn = (next((tile for tile in (32, 64) if size <= tile), largest) for size in (m, n))
    rm, rn = (4 if tile == 32 else 8 for tile in (tm, tn))
    threads = 1 if limits.cpu else tm * tn // (rm * rn)
    groups = -(-m // tm) * -(-n // tn) * batch
    tk = 64 if limits.cpu else 16 if limits.ampere else 8
    depth = -(-k // max(1, min(_GROUPS // groups, k // _SHORTEST)) // tk) * tk
    found = {"TM": tm, "TN": tn, "TK": tk, "RM": rm, "RN": rn}
    return found | {"TF32": int(tf32 and limits.ampere), "THREADS": threads, "DEPTH": depth, "PARTS": -(-k // depth)}


def digest() -> str:
    """Of all that makes a step what it is: what was proved with another is not proved with this."""
    sources = [item for item in files(__package__).iterdir() if item.name.endswith((".py", ".cl"))]
    texts = [item.read_text() for item in sorted(sources, key=lambda item: item.name)]
    return sha256("".join(texts).encode()).hexdigest()[:8]


@cache
def _kernel() -> str:
    return (files(__package__) / "product.cl").read_text()
