"""The levels that are compiled in, and which of them this machine is said to run."""

import platform
from pathlib import Path

import pytest

from octavo import _native

LEVELS = {name: supported for name, supported, _ in _native.isa_levels()}
AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
# What Linux calls what a level needs. A compiler may lack the first and the fourth.
FLAGS = {
    "amx": AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    "avx512_bf16": AVX512 | {"avx512_bf16"},
    "avx512": AVX512,
    "avx2_vnni": AVX2 | {"avx_vnni"},
    "avx2": AVX2,
    "scalar": set[str](),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
def test_a_level_is_supported_where_linux_says_so() -> None:
    text = Path("/proc/cpuinfo").read_text()
    flags = set(next(line for line in text.splitlines() if line.startswith("flags")).split())
    order = list(FLAGS)
    if "GenuineIntel" in text and "avx512_fp16" in flags:  # where vdpbf16ps has half the rate of multiply-adds
        order[1:3] = reversed(order[1:3])
    assert list(LEVELS) == [name for name in order if name in LEVELS]
    assert set(FLAGS) - set(LEVELS) <= {"amx", "avx2_vnni"}
    for name, supported in LEVELS.items():
        if name == "amx":  # a process has to be permitted to use it
            assert not supported or FLAGS[name] <= flags
        else:
            assert supported == (FLAGS[name] <= flags), name


def test_the_best_supported_level_is_taken_and_another_is_refused_with_what_it_lacks() -> None:
    assert _native.select_isa().name == next(name for name, supported in LEVELS.items() if supported)
    for name, supported, needs in _native.isa_levels():
        if supported:
            assert _native.select_isa(name).name == name
            continue
        with pytest.raises(ValueError, match=f"cannot run the instruction set '{name}'") as refused:
            _native.select_isa(name)
        assert needs in str(refused.value)
