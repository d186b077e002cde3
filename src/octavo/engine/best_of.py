"""best_of: a request's sequences are held back until all have ended, and the n best of them become its outputs."""

from octavo.engine.outputs import SequenceOutput, end_of
from octavo.engine.request import Request


class BestOf:
    """Takes the news of all sequences; at the end gives the n of the highest mean log-probability per token, whole."""

    def __init__(self, request: Request) -> None:
        self._params = request.params
        self._lines = [SequenceOutput(request.request_id, index, []) for index in range(self._params.num_sequences)]
        for line in self._lines:
            line.logprobs = []
        self._num_open = len(self._lines)

    def add(self, news: SequenceOutput) -> list[SequenceOutput]:
        """Nothing before the last sequence has ended. Where one has failed, the request has."""
        line = self._lines[news.index]
        line.token_ids += news.token_ids
        line.text += news.text
        if line.logprobs is not None and news.logprobs is not None:
            line.logprobs += news.logprobs
        line.finish_reason, line.stop_reason, line.error = news.finish_reason, news.stop_reason, news.error
        line.prompt_logprobs = line.prompt_logprobs or news.prompt_logprobs
        line.num_cached_tokens = news.num_cached_tokens
        self._num_open -= news.finish_reason is not None
        return [] if self._num_open else self._choose()

    def _choose(self) -> list[SequenceOutput]:
        n = self._params.n
        for line in self._lines:
            if line.finish_reason in ("abort", "error", "timeout"):
                return [end_of(line.request_id, index, line.finish_reason, line.error) for index in range(n)]
        prompt_logprobs = self._lines[0].prompt_logprobs
        best = sorted(self._lines, key=_mean_logprob, reverse=True)[:n]  # stable: of equal ones the first
        for index, line in enumerate(best):
            line.index = index
            line.prompt_logprobs = None if index else prompt_logprobs
            if self._params.logprobs is None:
                line.logprobs = None
        return best


def _mean_logprob(line: SequenceOutput) -> float:
    logprobs = [entry[token_id].logprob for token_id, entry in zip(line.token_ids, line.logprobs or (), strict=True)]
    return sum(logprobs) / max(len(logprobs), 1)
