"""A recorded list of operations, and the passes that rewrite it before it becomes a Program.

Activations are prepared once per input; linears that share one run together; a residual sum becomes the epilogue of the
linear before it, a gated activation that of the two before it; and every buffer gets a place in one workspace, shared
with those that never live at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo import _native

Rows = Literal["T", "S", "R"]
ACTIVATIONS: dict[str, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}
ALIGNMENT = 64
# Ops whose rows are independent: where some of equal rows follow one another, the Program runs them together, a few
# rows of all of them at a time.
ROW_OPS = {"embed", "quantize", "rms_norm", "rope_angles", "rope", "activation", "add", "select_rows"}
MAX_LINEAR_GROUP = 8
Emit = Callable[[_native.Program, list[int], list[int]], None]  # (program, offsets of inputs, offsets of outputs)


@dataclass(eq=False, slots=True)
class Buffer:
    """A recorded array: `width` float32 values for each of its rows, or `row_bytes` bytes in a form of the kernels'
    own.
    """

    rows: Rows
    width: int
    row_bytes: int
    offset: int = -1

    @property
    def shape(self) -> tuple[str, int]:
        return (self.rows, self.width)


@dataclass(eq=False, slots=True)
class Node:
    """One operation. Passes may change what it reads and writes; `emit` then adds it to a Program, given the offsets of
    its inputs and outputs in the workspace.
    """

    name: str
    inputs: list[Buffer]
    outputs: list[Buffer]
    emit: Emit
    attributes: dict[str, Any] = field(default_factory=dict)


def count_reads(nodes: Sequence[Node]) -> Counter[int]:
    """How often each buffer is read, by its id()."""
    return Counter(id(buffer) for node in nodes for buffer in node.inputs)


def fuse_residuals(nodes: list[Node]) -> list[Node]:
    """`add(a, linear(...))` becomes a linear that accumulates into a, where nothing else reads a or the product
    afterwards.
    """
    reads = count_reads(nodes)
    last_read: dict[int, int] = {}
    producer: dict[int, int] = {}
    for i, node in enumerate(nodes):
        for buffer in node.inputs:
            last_read[id(buffer)] = i
        for buffer in node.outputs:
            producer[id(buffer)] = i
    replaced: dict[int, Buffer] = {}
    dropped: set[int] = set()
    for i, node in enumerate(nodes):
        read_later = any(last_read[id(buffer)] > i for buffer in node.inputs[:1])
        node.inputs = [replaced.get(id(buffer), buffer) for buffer in node.inputs]
        node.outputs = [replaced.get(id(buffer), buffer) for buffer in node.outputs]
        if node.name != "add" or len(node.inputs) != 2:
            continue
        a, product = node.inputs
        p = producer.get(id(product), i)
        linear = nodes[p]
        if (
            linear.name != "linear"
            or linear.attributes["accumulate"] != [False]
            or reads[id(product)] != 1
            or read_later
            or any(a in n.inputs or a in n.outputs for n in nodes[p:i])
        ):
            continue
        linear.attributes["accumulate"] = [True]
        linear.inputs.append(a)
        linear.outputs = [a]
        replaced[id(node.outputs[0])] = a
        producer[id(a)] = p
        dropped.add(i)
    return [node for i, node in enumerate(nodes) if i not in dropped]


def prepare_activations(nodes: list[Node], isa: _native.KernelTable) -> list[Node]:
    """Puts before each run of linears the forms of their input that their weights take, each made once."""
    result: list[Node] = []
    prepared: dict[int, dict[int, Buffer]] = {}  # of each buffer, by the kind of form
    run_start = 0  # where the current run of linears over one input begins
    run_input: Buffer | None = None
    for node in nodes:
        if node.name == "linear":
            x = node.inputs[0]
            if x is not run_input:
                run_start, run_input = len(result), x
            act = _native.act_of(isa, node.attributes["weights"][0].format)
            row_bytes = _native.act_bytes(isa, act, x.width)
            if (act, row_bytes) != (0, 4 * x.width):
                forms = prepared.setdefault(id(x), {})
                if act not in forms:
                    form = forms[act] = Buffer(x.rows, x.width, row_bytes)
                    emit = _emit_quantize(act, x, form)
                    result.insert(run_start, Node("quantize", [x], [form], emit, {"act": act}))
                    run_start += 1
                node.inputs[0] = forms[act]
        else:
            run_input = None
        for buffer in node.outputs:
            prepared.pop(id(buffer), None)
        result.append(node)
    return result


def _emit_quantize(act: int, x: Buffer, form: Buffer) -> Emit:
    return lambda p, i, o: p.quantize(x.rows, act, i[0], x.width, o[0])


def group_linears(nodes: list[Node]) -> list[Node]:
    """Linears that follow one another and do not feed one another become one op: their columns are shared out
    together.
    """
    result: list[Node] = []
    for node in nodes:
        last = result[-1] if result else None
        if (
            node.name == "linear"
            and last is not None
            and last.name == "linear"
            and len(last.outputs) < MAX_LINEAR_GROUP
            and last.outputs[0].rows == node.outputs[0].rows
            and not any(True in n.attributes["accumulate"] for n in (last, node))
            and not any(buffer in last.outputs for buffer in node.inputs)
        ):
            last.inputs = [*last.inputs, *node.inputs]
            last.outputs = [*last.outputs, *node.outputs]
            for name in ("weights", "biases", "accumulate"):
                last.attributes[name] = [*last.attributes[name], *node.attributes[name]]
        else:
            result.append(node)
    return result


def fuse_gates(nodes: list[Node]) -> list[Node]:
    """Two linears, the gated activation of their products and its preparation for the next linear become one op: the
    products, the widest rows of a model, then never leave the kernel.
    """
    reads = count_reads(nodes)
    result: list[Node] = []
    for node in nodes:
        last = result[-1] if result else None
        if last is None:
            result.append(node)
        elif (
            last.name == "linear"
            and node.name == "activation"
            and len(node.inputs) == 2
            and node.inputs == last.outputs
            and True not in last.attributes["accumulate"]
            and all(reads[id(buffer)] == 1 for buffer in node.inputs)
        ):
            attributes = {**last.attributes, "kind": node.attributes["kind"], "act": 0}
            result[-1] = Node(
                "gated_linear", last.inputs, node.outputs, _emit_gated(attributes, node.outputs[0].rows), attributes
            )
        elif (
            last.name == "gated_linear"
            and node.name == "quantize"
            and reads[id(last.outputs[0])] == 1
            and node.inputs == last.outputs
        ):
            last.attributes["act"] = node.attributes["act"]
            last.outputs = node.outputs
        else:
            result.append(node)
    return result


def _emit_gated(attributes: Mapping[str, Any], rows: Rows) -> Emit:
    return lambda p, i, o: p.gated_linear(
        rows, ACTIVATIONS[attributes["kind"]], i, attributes["weights"], attributes["biases"], attributes["act"], o[0]
    )


def moments(nodes: Sequence[Node]) -> list[int]:
    """When each node runs: at the same time as the one before it where the Program may run both together."""
    result: list[int] = []
    now, running = 0, ""  # the rows of the chain that has begun
    for node in nodes:
        if node.name not in ("cut", "keep"):  # they end no chain
            rows = node.outputs[0].rows if node.name in ROW_OPS else ""
            if not rows or rows != running:
                now += 1
            running = rows
        result.append(now)
    return result


def place_buffers(nodes: Sequence[Node], capacity: Mapping[Rows, int]) -> int:
    """Gives each buffer the lowest offset that is free from its first use to its last; returns the bytes that takes."""
    spans: dict[int, tuple[Buffer, int, int]] = {}
    for moment, node in zip(moments(nodes), nodes, strict=True):
        for buffer in (*node.inputs, *node.outputs):
            first = spans[id(buffer)][1] if id(buffer) in spans else moment
            spans[id(buffer)] = (buffer, first, moment)
    placed: list[tuple[int, int, int]] = []  # (offset, end, last use)
    total = 0
    for buffer, first, last in sorted(spans.values(), key=lambda span: span[1]):
        size = -(-buffer.row_bytes * capacity[buffer.rows] // ALIGNMENT) * ALIGNMENT
        placed = sorted(entry for entry in placed if entry[2] >= first)
        offset = 0
        for start, end, _ in placed:
            if offset + size <= start:
                break
            offset = max(offset, end)
        buffer.offset = offset
        placed.append((offset, offset + size, last))
        total = max(total, offset + size)
    return total
