// The sampler's arguments: what each sampled row is to be made of, and where its outputs go.
#pragma once

#include "types.h"

namespace octavo {

struct TokenBias {  // logits[id] += value; -inf bans
    const int32_t* ids;
    const float* values;
    int size;
};

struct TokenPenalties {  // every token of prompt and output once, with how often it is in the output
    const int32_t* ids;
    const int32_t* counts;
    int size;
};

enum class SampleStatus : int32_t {
    ok = 0,
    bad_logits = 1,  // every logit of the row is NaN or -inf
    all_banned = 2,  // masks, bans and biases leave no token
};

// Every array has an entry per sampled row. Rows that name the same `source` sample from the same logits.
struct SampleArgs {
    const float* logits;  // [*, vocab], never written
    int64_t logits_stride;
    int rows, vocab;

    const int32_t* source;     // row of the logits
    const float* temperature;  // below 1e-5: arg-max
    const int32_t* top_k;      // 0: off; 1: arg-max
    const float* top_p;        // 1: off; 0: arg-max
    const float* min_p;        // 0: off; 1: arg-max
    const float* repetition_penalty;
    const float* presence_penalty;
    const float* frequency_penalty;
    const uint64_t* seed;  // the random key is (seed, sequence, position)
    const int32_t* sequence;
    const int64_t* position;      // tokens before the sampled one
    const int32_t* num_logprobs;  // -1: none; else logprob and rank of the token, and this many alternatives
    const int32_t* target;        // -1: sample; else nothing is sampled and this token is reported
    const uint8_t* masked;        // whether the row has a mask
    const uint32_t* mask;         // [rows, mask_words]: bit i of word j allows token 32 j + i
    int64_t mask_words;
    const TokenBias* bias;            // size 0: none
    const TokenPenalties* penalties;  // size 0: none

    int32_t* token_ids;
    float* logprobs;   // of the raw logits, natural, at least -9999; 0 where none are asked for
    int32_t* ranks;    // from 1, in the order of falling logits, then rising ids; 0 where none are asked for
    int32_t* top_ids;  // [rows, top_stride], in the same order
    float* top_logprobs;
    int64_t top_stride;
    int32_t* status;  // SampleStatus; with an error the token is 0

    std::byte* scratch;  // sample_scratch(vocab) bytes for each thread
};

// Reductions over the vocabulary: maxima of blocks, by which most of a row is skipped, and sums of panels, added in float64.
constexpr int kSampleBlock = 64;
constexpr int kSamplePanel = 512;
constexpr int kSampleBuckets = 2048;

constexpr int64_t sample_scratch(int64_t vocab) {
    int64_t padded = (vocab + kSamplePanel - 1) / kSamplePanel * kSamplePanel;
    return 4 * padded * int64_t{sizeof(float)}                                    // logits, candidates: ids, values, weights
           + padded / kSampleBlock * int64_t{sizeof(float)}                       // block maxima
           + (padded / kSamplePanel + kSampleBuckets) * int64_t{sizeof(double)};  // panel sums, buckets
}

}  // namespace octavo
