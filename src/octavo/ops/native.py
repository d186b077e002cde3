"""Records a decoder once, with symbolic arrays, as a native Program that C++ replays in one call per step.

The calls of the `Ops` vocabulary become a list of nodes over virtual buffers; the passes of `ops/passes.py` rewrite it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.ops.interface import Activation, AttentionSpec, RopeSpec
from octavo.ops.passes import (
    ACTIVATIONS,
    Buffer,
    Emit,
    Node,
    Rows,
    fuse_gates,
    fuse_residuals,
    group_linears,
    place_buffers,
    prepare_activations,
)

Vector = NDArray[np.float32]


class NativeOps:
    """The recording backend. `capacity`: the most rows of each kind that a step has; `layers[i]` is (cache group, index
    within it) of layer i.
    """

    def __init__(
        self,
        isa: _native.KernelTable,
        capacity: Mapping[Rows, int],
        layers: Sequence[tuple[int, int]],
        num_groups: int,
        threads: int,
        *,
        first_group: int = 0,
    ) -> None:
        self._isa = isa
        self._capacity = capacity
        self._layers = layers
        self._threads = threads
        self._nodes: list[Node] = []
        self._angles: dict[RopeSpec, Buffer] = {}
        # What all attention shares, and the heads (number, size) that it is for.
        self._scratch = Buffer("S", 0, 0)
        self._heads: set[tuple[int, int]] = set()
        self._fused = False
        self._pooled: Node | None = None
        # Known when the Program is built.
        self._caches: Sequence[_native.KVCache] = ()
        self._max_context = 0
        self._turn = 0  # which of the Programs is built
        for group in range(first_group, first_group + num_groups):
            self._add("update_cache", [], [], self._update_cache(group))
        self.cut()

    # --- the vocabulary ---------------------------------------------------------------------------------------------

    def embed(self, weight: _native.PackedWeight, scale: float = 1.0) -> Buffer:
        out = self._floats("T", weight.k)
        return self._add("embed", [], [out], lambda p, i, o: p.embed(weight, scale, o[0]))

    def linear(self, x: Buffer, weight: _native.PackedWeight, bias: Vector | None = None) -> Buffer:
        if x.width != weight.k:
            raise ValueError(f"linear: x has {x.width} columns, the weight takes {weight.k}")
        out = self._floats(x.rows, weight.n)
        attributes: dict[str, Any] = {"weights": [weight], "biases": [bias], "accumulate": [False]}

        def emit(p: _native.Program, i: list[int], o: list[int]) -> None:
            # Behind the inputs of its outputs stands the one that an accumulating linear adds to.
            p.linear(x.rows, i[: len(o)], attributes["weights"], attributes["biases"], o, attributes["accumulate"])

        self._nodes.append(Node("linear", [x], [out], emit, attributes))
        return out

    def rms_norm(self, x: Buffer, weight: Vector, eps: float, offset: float = 0.0) -> Buffer:
        groups, rest = divmod(x.width, len(weight))
        if rest:
            raise ValueError(f"rms_norm: {x.width} columns are not whole groups of {len(weight)}")
        out = self._floats(x.rows, x.width)
        return self._add(
            "rms_norm", [x], [out], lambda p, i, o: p.rms_norm(x.rows, i[0], weight, eps, offset, groups, o[0])
        )

    def rope(self, x: Buffer, spec: RopeSpec, head_dim: int) -> Buffer:
        half = len(spec.inv_freq)
        angles = self._angles.get(spec)
        if angles is None:
            angles = self._angles[spec] = self._floats("T", 2 * half)
            inv_freq = np.array(spec.inv_freq, np.float64)
            first = Node("rope_angles", [], [angles], lambda p, i, o: p.rope_angles(inv_freq, spec.scale, o[0]))
            self._nodes.append(first)
        heads = x.width // head_dim
        # In place: a decoder has no use for the vector before its rotation.
        out = self._add(
            "rope",
            [x, angles],
            [x],
            lambda p, i, o: p.rope(i[1], i[0], heads, head_dim, half, spec.interleaved),
        )
        return out

    def attention(self, q: Buffer, k: Buffer, v: Buffer, layer: int, spec: AttentionSpec) -> Buffer:
        group, index = self._layers[layer]
        self._heads.add((spec.num_heads, spec.head_dim))
        scratch = self._scratch
        out = self._floats("T", q.width)
        return self._add(
            "attention",
            [q, k, v, scratch],
            [out, scratch],
            lambda p, i, o: p.attention(
                group,
                self._caches[group],
                index,
                i[0],
                i[1],
                i[2],
                spec.num_heads,
                spec.window,
                spec.scale,
                spec.softcap,
                self._max_context,
                i[3],
                o[0],
            ),
        )

    def gated_activation(self, gate: Buffer, up: Buffer, kind: Activation) -> Buffer:
        out = self._floats(gate.rows, gate.width)
        return self._add(
            "activation",
            [gate, up],
            [out],
            lambda p, i, o: p.activation(gate.rows, ACTIVATIONS[kind], i[0], i[1], gate.width, o[0]),
            kind=kind,
        )

    def activation(self, x: Buffer, kind: Activation) -> Buffer:
        out = self._floats(x.rows, x.width)
        return self._add(
            "activation",
            [x],
            [out],
            lambda p, i, o: p.activation(x.rows, ACTIVATIONS[kind], i[0], -1, x.width, o[0]),
        )

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        if a.shape != b.shape:
            raise ValueError(f"add: shapes {a.shape} and {b.shape} differ")
        out = self._floats(a.rows, a.width)
        return self._add("add", [a, b], [out], lambda p, i, o: p.add(a.rows, i[0], i[1], 1.0, a.width, o[0]))

    def scale(self, x: Buffer, factor: float) -> Buffer:
        out = self._floats(x.rows, x.width)
        return self._add(
            "add", [x], [out], lambda p, i, o: p.add(x.rows, i[0], -1, factor, x.width, o[0]), scale=factor
        )

    def select_rows(self, x: Buffer) -> Buffer:
        out = self._floats("R", x.width)
        return self._add("select_rows", [x], [out], lambda p, i, o: p.select_rows(i[0], x.width, o[0]))

    def logits(self, x: Buffer, weight: _native.PackedWeight, softcap: float = 0.0, scale: float = 1.0) -> Buffer:
        out = self.linear(x, weight)
        if softcap or scale != 1.0:
            self._add("softcap", [out], [out], lambda p, i, o: p.softcap(out.rows, o[0], out.width, softcap, scale))
        return out

    def pool(self, x: Buffer) -> None:
        if self._pooled is not None:
            raise ValueError("pool: vectors can be pooled from the rows of one array only")
        # To the end, where passes may have put another buffer in its place.
        self._pooled = Node("keep", [x], [], lambda p, i, o: None)

    def call(self, function: Callable[..., Any], *arrays: Buffer) -> Buffer:
        out = self._floats(arrays[0].rows, arrays[0].width)
        return self._add(
            "call",
            list(arrays),
            [out],
            lambda p, i, o: p.call(
                function, [(a.rows, offset, a.width) for a, offset in zip(arrays, i, strict=True)], o[0]
            ),
        )

    def cut(self) -> None:
        self._nodes.append(Node("cut", [], [], lambda p, i, o: p.cut()))

    # --- from the list to a Program ---------------------------------------------------------------------------------

    def sample(self, logits: Buffer, sample_inputs: Sequence[_native.SampleInputs]) -> None:
        """Ends the recording: the sampler reads `logits` and leaves its outputs in `sample_inputs`, a Program's own."""
        self.cut()
        self._add("sample", [logits], [logits], lambda p, i, o: p.sample(i[0], logits.width, sample_inputs[self._turn]))
        if self._pooled is not None:
            self._nodes.append(self._pooled)

    def linears(self) -> list[tuple[list[Any], int | None]]:
        """Ends the recording; the weights of each linear op, and of gated ones the form of their product."""
        self._fuse()
        with_weights = [node.attributes for node in self._nodes if "weights" in node.attributes]
        return [(attributes["weights"], attributes.get("act")) for attributes in with_weights]

    def workspace_bytes(self, max_context: int) -> int:
        """Ends the recording and places the buffers; the bytes that they take where no sequence is longer."""
        self._fuse()
        tokens, seqs = self._capacity["T"], self._capacity["S"]
        most = max(
            (
                _native.attention_scratch(self._isa, tokens, seqs, number, size, max_context, self._threads)
                for number, size in self._heads
            ),
            default=0,
        )
        self._scratch.row_bytes = -(-most // seqs)
        return place_buffers(self._nodes, self._capacity)

    def build(
        self,
        pool: _native.ThreadPool,
        inputs: Sequence[_native.StepInputs],
        caches: Sequence[_native.KVCache],
        max_context: int,
    ) -> list[_native.Program]:
        """A Program for each of `inputs`, over one KVCache for each cache group, for sequences of up to `max_context`
        tokens. They share a workspace: one of them runs at a time.
        """
        self._caches, self._max_context = caches, max_context
        programs = [_native.Program(self._isa, pool, inputs[0], self.workspace_bytes(max_context))]
        programs += [_native.Program(programs[0], others) for others in inputs[1:]]
        for self._turn, program in enumerate(programs):
            for node in self._nodes:
                node.emit(program, [b.offset for b in node.inputs], [b.offset for b in node.outputs])
            program.cut()
        # What the nodes emit refers to this object: the cycle would keep weights and caches past the Program.
        self._nodes, self._caches = [], ()
        return programs

    @property
    def pooled(self) -> tuple[int, int] | None:
        """Offset in the workspace and width of the rows that vectors are pooled from, once buffers are placed."""
        return None if self._pooled is None else (self._pooled.inputs[0].offset, self._pooled.inputs[0].width)

    def keep(self, *buffers: Buffer) -> None:
        """Lets buffers live to the end of the step, so that their rows can be read when it is over."""
        self._nodes.append(Node("keep", list(buffers), [], lambda p, i, o: None))

    def _fuse(self) -> None:
        if not self._fused:
            self._nodes = fuse_gates(group_linears(prepare_activations(fuse_residuals(self._nodes), self._isa)))
            self._fused = True

    def _update_cache(self, group: int) -> Emit:
        return lambda p, i, o: p.update_cache(group, self._caches[group])

    def _floats(self, rows: Rows, width: int) -> Buffer:
        return Buffer(rows, width, 4 * width)

    def _add(self, name: str, inputs: list[Buffer], outputs: list[Buffer], emit: Emit, **attributes: Any) -> Buffer:
        self._nodes.append(Node(name, inputs, outputs, emit, attributes))
        return outputs[0] if outputs else Buffer("T", 0, 0)
