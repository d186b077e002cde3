"""Builds isa_check, the program that compares the kernel table of one instruction set with the scalar one."""

import os
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
ISA_FLAGS = {
    "scalar": [],
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    "avx2_vnni": [*AVX2, "-mavxvnni"],
    "avx2_vnni_emulated": [*AVX2, f"-I{NATIVE}"],
    "amx_emulated": [f"-I{NATIVE}"],
    "neon": ["-march=armv8.2-a+dotprod"],
    "neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm+bf16"],
}
# Tables for tests, and the level that they are compiled for.
EMULATED = {"avx2_vnni_emulated": "avx2", "amx_emulated": "scalar"}
# Levels that a compiler may lack.
LEVEL_DEFINES = ["-DOCTAVO_WITH_AMX", "-DOCTAVO_WITH_AVX2_VNNI"]
KERNEL_FLAGS = [
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fvisibility=hidden",
    "-Wno-psabi",
]
CHECKS = ["isa_check", "check_elementwise", "check_linear", "check_attention", "check_sampler", "stub_tables"]
SUPPORT = ["pack", "plan", "thread_pool", "dispatch"]

ON_ARM = platform.machine() in ("aarch64", "arm64")


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def arm_compiler() -> str:
    """The compiler for the Arm tables: the system's on Arm, else a cross compiler."""
    return compiler() if ON_ARM else os.environ.get("CXX_AARCH64", "aarch64-linux-gnu-g++")


def build(isa: str, folder: Path, optimize: str = "-O3", static: bool = False, jobs: int = 2) -> Path:
    """The program for one table, in `folder`; `optimize` is the table's. Programs in one folder share what they can."""
    cxx = arm_compiler() if isa.startswith("neon") else compiler()

    def compile_one(source: Path, flags: list[str]) -> Path:
        target = folder / (f"isa_check-{isa}.o" if source.stem == "isa_check" else f"{source.stem}.o")
        if target.exists():
            return target
        command = [cxx, "-std=c++20", *flags, f"-I{NATIVE}", "-c", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        return target

    table = HERE if isa in EMULATED else NATIVE / "isa"
    names = [f"-DOCTAVO_ISA={isa}", f"-DOCTAVO_NEEDS={EMULATED.get(isa, isa)}"]  # for isa_check
    parts = [
        (NATIVE / "isa" / "scalar.cpp", ["-O1", *KERNEL_FLAGS]),
        (table / f"{isa}.cpp", [optimize, *KERNEL_FLAGS, *ISA_FLAGS[isa]]),
        *((HERE / f"{name}.cpp", ["-O1", "-Wall", "-Wextra", *names]) for name in CHECKS),
        *((NATIVE / f"{name}.cpp", ["-O1", *LEVEL_DEFINES]) for name in SUPPORT),
    ]
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(lambda part: compile_one(*part), parts))
    program = folder / f"isa_check-{isa}"
    linking = ["-static", "-pthread"] if static else ["-pthread"]
    subprocess.run([cxx, *linking, *map(str, objects), "-o", str(program)], check=True)
    return program


def build_dispatch(folder: Path, cxx: str) -> Path:
    """The program that prints the level which a machine is given, with no table in it."""
    program = folder / "check_dispatch"
    sources = [HERE / "check_dispatch.cpp", HERE / "stub_tables.cpp", NATIVE / "dispatch.cpp"]
    command = [cxx, "-std=c++20", "-static", *LEVEL_DEFINES, f"-I{NATIVE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program
