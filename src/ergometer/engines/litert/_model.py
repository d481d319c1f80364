"""A TFLite model written operation by operation: the flatbuffer, with the schema that LiteRT itself ships."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ergometer.core.errors import UnavailableError

_TYPES = {"float32": "FLOAT32", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}
_SCHEMA = 3
_IDENTIFIER = b"TFL3"
_LARGEST = (1 << 31) - (1 << 24)  # flatbuffers hold 2 GiB
_VERSIONS = {"BROADCAST_TO": 2}  # the first one that LiteRT has; of the others 1


class Operator(NamedTuple):
    op: str
    inputs: list[int]
    output: int
    options: str
    attributes: dict[str, Any]


class Model:
    """Tensors are numbers. Operations run in the order in which they are added."""

    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated

        self.schema: Any = schema_py_generated
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[str] = []
        self.buffers: list[Any] = [None]
        self.contents: list[int] = []
        self.operators: list[Operator] = []
        self.known: dict[Any, int] = {}

    def tensor(self, shape: tuple[int, ...], dtype: str = "float32") -> int:
        self.shapes.append(tuple(shape))
        self.dtypes.append(dtype)
        self.contents.append(0)
        return len(self.shapes) - 1

    def constant(self, array: Any) -> int:
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= 64 else None
        if key in self.known:
            return self.known[key]
        number = self.tensor(array.shape, array.dtype.name)
        self.contents[number] = len(self.buffers)
        self.buffers.append(array)
        if key:
            self.known[key] = number
        return number

    def numbers(self, *items: int) -> int:
        """A constant vector of int32: a shape, a permutation, a list of axes."""
        return self.constant(np.array(items, np.int32))

    def add(
        self,
        op: str,
        inputs: list[int],
        shape: tuple[int, ...],
        options: str = "",
        dtype: str = "float32",
        **attributes: Any,
    ) -> int:
        """The output of an operation, new unless there is the same already. options: the table of its attributes."""
        key = (op, *inputs, shape, dtype, repr(attributes))
        if key not in self.known:
            self.known[key] = self.tensor(shape, dtype)
            self.operators.append(Operator(op, inputs, self.known[key], options, attributes))
        return self.known[key]

    def write(self, path: Path, inputs: list[int], outputs: list[int]) -> None:
        import flatbuffers

        size = sum(buffer.nbytes for buffer in self.buffers if buffer is not None)
        if size >= _LARGEST:
            raise UnavailableError(
                f"LiteRT takes files of less than 2 GiB: this network's constants have {size >> 20} MiB."
            )
        builder = flatbuffers.Builder(size + (1 << 20))
        builder.Finish(self._pack(inputs, outputs).Pack(builder), _IDENTIFIER)
        path.write_bytes(builder.Output())

    def _pack(self, inputs: list[int], outputs: list[int]) -> Any:
        schema = self.schema
        codes = sorted({item.op for item in self.operators})
        subgraph = schema.SubGraphT(
            tensors=[self._tensor(number) for number in range(len(self.shapes))],
            inputs=inputs,
            outputs=outputs,
            operators=[self._operator(codes.index(item.op), item) for item in self.operators],
            name="step",
        )
        return schema.ModelT(
            version=_SCHEMA,
            operatorCodes=[self._code(op) for op in codes],
            subgraphs=[subgraph],
            description="ergometer",
            buffers=[schema.BufferT(data=_bytes(buffer)) for buffer in self.buffers],
        )

    def _tensor(self, number: int) -> Any:
        return self.schema.TensorT(
            shape=list(self.shapes[number]),
            type=getattr(self.schema.TensorType, _TYPES[self.dtypes[number]]),
            buffer=self.contents[number],
            name=str(number),
            hasRank=True,
        )

    def _code(self, op: str) -> Any:
        code = getattr(self.schema.BuiltinOperator, op)
        version = _VERSIONS.get(op, 1)
        return self.schema.OperatorCodeT(deprecatedBuiltinCode=min(code, 127), builtinCode=code, version=version)

    def _operator(self, code: int, item: Operator) -> Any:
        table = getattr(self.schema, f"{item.options}T")(**item.attributes) if item.options else None
        return self.schema.OperatorT(
            opcodeIndex=code,
            inputs=item.inputs,
            outputs=[item.output],
            builtinOptions=table,
            builtinOptionsType=getattr(self.schema.BuiltinOptions, item.options or "NONE"),
        )


def _bytes(buffer: Any) -> Any:
    return None if buffer is None else buffer.reshape(-1).view(np.uint8)
