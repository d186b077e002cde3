"""The text and the times of plain decodes: what clients are told of the one token that each of them gets in a step."""

import logging
from collections.abc import Mapping

from octavo.engine.batch import ScheduledRange
from octavo.engine.live import Detokenizer, Live
from octavo.engine.outputs import SequenceOutput
from octavo.engine.stats import EngineStats
from octavo.errors import describe

logger = logging.getLogger(__name__)


class DecodeFeeds:
    """Makes outputs of the tokens of plain decodes. Nearly always they are those of the step before, so that of each
    all that is needed is at hand; their times and numbers of tokens are written down once that changes.
    """

    def __init__(self, live: Mapping[str, Live], stats: EngineStats) -> None:
        self._live, self._stats = live, stats
        self._decodes: list[ScheduledRange] = []
        self._feeds: list[tuple[str, int, int, Live, Detokenizer | None]] = []
        self._last = 0.0  # when the last tokens were told
        self._num_unsettled = 0  # tokens told of each that are not in its Live

    def tell(
        self, decodes: list[ScheduledRange], token_ids: list[int], now: float
    ) -> tuple[list[SequenceOutput], list[tuple[SequenceOutput, str]]]:
        """The outputs of one token for each, and of these the ones that end for what became of their text, and why."""
        before, self._last = self._last, now
        if decodes is self._decodes:
            self._stats.inter_token_latency.observe(now - before, len(decodes))
        else:
            self._follow(decodes, before, now)
        outputs: list[SequenceOutput] = []
        ended: list[tuple[SequenceOutput, str]] = []
        for (request_id, index, num_cached, _, detokenizer), token_id in zip(self._feeds, token_ids, strict=True):
            output = SequenceOutput(request_id, index, [token_id], num_cached)
            outputs.append(output)
            if detokenizer is None:
                continue
            try:
                if (text := detokenizer.texts[token_id]) is not None:
                    output.text = text
                    continue
                output.text = detokenizer.append(output.token_ids)
                if detokenizer.stop_reason is not None:
                    output.stop_reason = detokenizer.stop_reason
                    ended.append((output, "stop"))
            except Exception as error:
                logger.exception("The text of request %s failed; it ends with an error.", request_id)
                output.error = describe(error)
                ended.append((output, "error"))
        self._num_unsettled += 1
        self._stats.generation_tokens += len(outputs)
        return outputs, ended

    def settle(self) -> None:
        """Writes down what has been told."""
        if not self._num_unsettled:
            return
        for _, index, _, live, _ in self._feeds:
            live.last_times[index] = self._last
            live.num_tokens += self._num_unsettled
        self._num_unsettled = 0

    def _follow(self, decodes: list[ScheduledRange], before: float, now: float) -> None:
        """From now on these are the plain decodes."""
        if self._num_unsettled:
            self._last = before
            self.settle()
            self._last = now
        self._decodes, self._feeds = decodes, []
        num_steady = 0
        for scheduled in decodes:
            sequence = scheduled.sequence
            request_id, index = sequence.request.request_id, sequence.index
            live = self._live[request_id]
            detokenizer = live.detokenizers[index] if live.detokenizers else None
            self._feeds.append((request_id, index, sequence.num_cached_tokens, live, detokenizer))
            if (last := live.last_times[index]) == before:
                num_steady += 1
            else:
                self._stats.inter_token_latency.observe(now - last)
        self._stats.inter_token_latency.observe(now - before, num_steady)
