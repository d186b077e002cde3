"""What the models of an engine run on: kernels, threads, and whether a core is left beside these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo import _native
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.runtime.topology import Node, default_threads, place_threads, read_nodes


@dataclass(frozen=True, eq=False)
class Machine:
    """What the models of an engine run on."""

    isa: _native.KernelTable
    nodes: Sequence[Node]
    threads: int
    pool: _native.ThreadPool
    looks_ahead: bool  # a step is prepared while the one before it runs


def select_isa(config: EngineConfig) -> _native.KernelTable:
    """Kernels as asked, or the best of this machine."""
    try:
        return _native.select_isa(config.isa or "")
    except ValueError as error:
        raise ConfigError(str(error)) from None


def take_machine(config: EngineConfig) -> Machine:
    """Kernels and threads as asked, or the best of this machine."""
    isa = select_isa(config)
    nodes = read_nodes()
    threads = config.threads or default_threads(nodes)
    drafts, looks_ahead = config.speculative_config is not None, config.async_scheduling
    if drafts and looks_ahead:
        raise ConfigError(
            "async_scheduling cannot be had with speculative_config: drafts follow tokens that are known."
        )
    if looks_ahead is None:  # what is done beside a step would take time from a thread that computes
        looks_ahead = threads < default_threads(nodes) and not drafts
    try:
        return Machine(isa, nodes, threads, _native.ThreadPool(threads, place_threads(threads, nodes)), looks_ahead)
    except RuntimeError as error:
        raise ConfigError(f"{threads} threads cannot be had: {error}. Use fewer with --threads.") from None
