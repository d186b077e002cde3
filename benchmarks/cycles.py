"""What LLVM's model of a processor makes of the linear tiles' inner loops, for processors that are not at hand.

    python benchmarks/cycles.py [--isa avx512_bf16] [--processor znver4] [--rows 12] [--llvm-mca llvm-mca-19]

Compiles one kernel table, takes the loop with the most dot products of each tile, and prints its cycles and the share
of them that its dot products alone would take. A model knows ports and latencies, but no caches and no neighbours.

LLVM 19 gives vpdpbusd, vpdpwssd and vdpbf16ps half the rate that Zen 4 has (one of 64 bytes a cycle, on the ports of
vfmadd231ps), and lets a broadcast from memory take a port of arithmetic: both are told to it as what they cost.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

NATIVE = Path(__file__).parent.parent / "native"
AVX512 = ["-mavx2", "-mfma", "-mf16c", *(f"-mavx512{name}" for name in ("f", "bw", "dq", "vl", "vnni"))]
LEVELS = {  # compiler flags, and the dot products of 64 or 32 bytes that a cycle has
    "avx2": (AVX512[:3], 2),
    "avx512": (AVX512, 1),
    "avx512_bf16": ([*AVX512, "-mavx512bf16"], 1),
}
FLAGS = ["-std=c++20", "-O3", "-S", "-fPIC", "-w", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti"]
DOTS = ("vpdpbusd", "vdpbf16ps", "vpmaddubsw")
COSTS = {
    r"vpdpbusd|vpdpwssd|vdpbf16ps": "vfmadd231ps",
    r"(vpbroadcastd|vbroadcastss)(?=\t\S*\()": "vmovups",
    r"\{1to16\}": "",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=LEVELS, default="avx512_bf16")
    parser.add_argument("--processor", default="znver4", help="as llvm-mca -mcpu names it")
    parser.add_argument("--rows", type=int, help="of the tiles; the most that each kind has by default")
    parser.add_argument("--llvm-mca", default="llvm-mca-19", help="the program; of LLVM 19, for what is said above")
    parser.add_argument("--cxx", default="c++")
    options = parser.parse_args()
    flags, a_cycle = LEVELS[options.isa]
    with tempfile.TemporaryDirectory() as folder:
        assembler = Path(folder) / "table.s"
        source = NATIVE / "isa" / f"{options.isa}.cpp"
        subprocess.run([options.cxx, *FLAGS, *flags, "-o", str(assembler), str(source)], check=True)
        for name, lines in functions(assembler.read_text(), options.rows):
            loop = max(inner_loops(lines), key=count, default=[])
            if dots := count(loop):
                cycles = modelled(loop, options.processor, options.llvm_mca)
                share = 100 * dots / a_cycle / cycles
                print(f"{name:57} {len(loop):4} instructions {dots:4} dots {cycles:6.1f} cycles {share:4.0f} %")


def functions(text: str, rows: int | None) -> Iterator[tuple[str, list[str]]]:
    """The tiles of so many rows, or the tallest ones: their names, and the lines of their code."""
    tallest: dict[str, tuple[int, list[str]]] = {}
    parts = re.split(r"^(_Z[\w.]+):$", text, flags=re.MULTILINE)
    names = subprocess.run(["c++filt"], input="\n".join(parts[1::2]), text=True, capture_output=True, check=True).stdout
    for name, code in zip(names.splitlines(), parts[2::2], strict=True):
        if found := re.search(r"(\w+Tile.*)::run\w*<(\d+), ", name):
            kind, height = found[1], int(found[2])
            if height == rows or (rows is None and height > tallest.get(kind, (0,))[0]):
                tallest[kind] = height, code.split("\t.size\t")[0].splitlines()
    for kind, (height, lines) in tallest.items():
        short = re.sub(r"octavo::|\w+::\(anonymous namespace\)::|\(anonymous namespace\)::", "", kind)
        yield f"{height} rows, {with_formats(short)}", lines


def with_formats(name: str) -> str:
    """`Format`s by name, where the compiler has numbers."""
    formats = re.search(r"enum class Format : uint8_t \{ (.*) \}", (NATIVE / "ops.h").read_text())
    assert formats is not None
    names = formats[1].split(", ")
    return re.sub(r"\(Format\)(\d+)", lambda number: names[int(number[1])], name)


def inner_loops(lines: list[str]) -> Iterator[list[str]]:
    """The instructions of loops that have no loop in them, without their jumps."""
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.match(r"\.L\w+:$", line)}
    jumps = [
        (labels.get(line.split("\t")[-1], len(lines)), i) for i, line in enumerate(lines) if line.startswith("\tj")
    ]
    loops = [(begin, end) for begin, end in jumps if begin < end]
    for begin, end in loops:
        if not any(begin <= b and e <= end for b, e in loops if (b, e) != (begin, end)):
            yield [line for line in lines[begin:end] if re.match(r"\t[a-z]", line) and not line.startswith("\tj")]


def count(body: list[str]) -> int:
    return sum(any(dot in line for dot in DOTS) for line in body)


def modelled(body: list[str], processor: str, llvm_mca: str) -> float:
    """Cycles of one turn of a loop, of many one after the other."""
    turns, text = 100, "\n".join(body) + "\n"
    for what, cost in COSTS.items():
        text = re.sub(what, cost, text)
    command = [llvm_mca, f"-mcpu={processor}", f"-iterations={turns}", "-instruction-info=0", "-resource-pressure=0"]
    report = subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout
    cycles = re.search(r"Total Cycles: +(\d+)", report)
    assert cycles is not None
    return int(cycles[1]) / turns


if __name__ == "__main__":
    main()
