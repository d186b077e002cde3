// The BPE merges of a SentencePiece vocabulary, which holds scores instead.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo {

// tokens: UTF-8, best first. Returns the two tokens that each is made of, in the same order; of tokens that no text is cut into, none.
//
// SentencePiece joins the adjacent pair whose whole has the best score, leftmost first. Within a span that becomes a token all joins go as
// if the span stood alone, so that the last is always the same pair: the one that this finds by cutting the token's own text.
std::vector<std::pair<uint32_t, uint32_t>> sentencepiece_merges(std::span<const std::string_view> tokens);

}  // namespace octavo
