"""The worker of OpenVINO GenAI: its continuous batching pipeline, over a GGUF file or a converted model.

Options: cache (GB for keys and values; default 2); any other is a property of the CPU device, as
INFERENCE_PRECISION_HINT=bf16.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai as genai

from .worker import Clock, Engine, Request, work


class OpenVino(Engine):
    def __init__(self, model: str, threads: int, options: dict[str, str]):
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = int(options.pop("cache", 2))
        scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 128, 512  # as octavo's defaults
        scheduler.dynamic_split_fuse = scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads, **options}
        self.pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.name, self.vocab, self.ids = f"OpenVINO GenAI {version('openvino-genai')}", 0, itertools.count()

    def run(self, requests: list[Request], shared: int, clock: Clock) -> None:
        handles = []
        for request in requests:
            config = genai.GenerationConfig(do_sample=False, ignore_eos=True)
            config.max_new_tokens = config.min_new_tokens = request.output
            prompt = openvino.Tensor(np.array([request.prompt], np.int64))
            handles.append(self.pipeline.add_request(next(self.ids), prompt, config))
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for i, handle in enumerate(handles):
                if handle.can_read():
                    clock.tick(i, sum(len(output.generated_ids) for output in handle.read().values()))


if __name__ == "__main__":
    work(OpenVino)
