#include "merges.h"

#include <algorithm>
#include <functional>

namespace octavo {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Ranks by text, found by sums of which every part of a text has its own: sum(byte[j] * kBase^(end - 1 - j)).
class Vocabulary {
  public:
    explicit Vocabulary(std::span<const std::string_view> tokens) : tokens_(tokens) {
        while ((size_t{1} << bits_) < 4 * tokens.size()) ++bits_;
        slots_.resize(size_t{1} << bits_, {0, kNone});
        std::vector<uint64_t> sums;
        for (uint32_t i = 0; i < tokens.size(); ++i) {
            read(tokens[i], sums);
            const uint64_t key = key_of(sums, 0, tokens[i].size());
            size_t at = key >> (64 - bits_);
            while (slots_[at].rank != kNone) at = (at + 1) & (slots_.size() - 1);
            slots_[at] = {static_cast<uint32_t>(key), i};
        }
    }

    // sums[i]: of the first i bytes.
    void read(std::string_view text, std::vector<uint64_t>& sums) {
        sums.assign(1, 0);
        for (unsigned char c : text) sums.push_back(sums.back() * kBase + c + 1);
        while (powers_.size() <= text.size()) powers_.push_back(powers_.back() * kBase);
    }

    uint32_t rank(std::string_view text, const std::vector<uint64_t>& sums, size_t begin, size_t end) const {
        const uint64_t key = key_of(sums, begin, end);
        for (size_t at = key >> (64 - bits_);; at = (at + 1) & (slots_.size() - 1)) {
            const Slot slot = slots_[at];
            if (slot.rank == kNone) return kNone;
            if (slot.key == static_cast<uint32_t>(key) && tokens_[slot.rank] == text.substr(begin, end - begin)) return slot.rank;
        }
    }

  private:
    static constexpr uint64_t kBase = 0x9e3779b97f4a7c15;
    struct Slot {
        uint32_t key, rank;
    };

    uint64_t key_of(const std::vector<uint64_t>& sums, size_t begin, size_t end) const {
        return (sums[end] - sums[begin] * powers_[end - begin]) * 0xd6e8feb86659fd93;
    }

    std::span<const std::string_view> tokens_;
    int bits_ = 2;
    std::vector<Slot> slots_;
    std::vector<uint64_t> powers_{1};
};

// Cuts one text after another; what it holds is kept between them.
class Cutter {
  public:
    explicit Cutter(std::span<const std::string_view> tokens) : vocabulary_(tokens) {}

    // The last join that makes `text` one token, {kNone, kNone} where the joins end before.
    std::pair<uint32_t, uint32_t> last_join(std::string_view text) {
        text_ = text;
        vocabulary_.read(text, sums_);
        parts_.clear();
        joins_.clear();
        for (size_t at = 0; at < text.size();) {
            size_t end = at + 1;
            while (end < text.size() && (text[end] & 0xc0) == 0x80) ++end;
            const auto i = static_cast<uint32_t>(parts_.size());
            parts_.push_back({at, end, i - 1, end < text.size() ? i + 1 : kNone, rank(at, end)});
            at = end;
        }
        for (uint32_t i = 0; i + 1 < parts_.size(); ++i) propose(i);
        while (!joins_.empty()) {
            std::pop_heap(joins_.begin(), joins_.end(), std::greater<>());
            const Join join = joins_.back();
            joins_.pop_back();
            Part& left = parts_[join.left];
            if (left.next == kNone || parts_[left.next].end != join.end) continue;  // one of the two has been joined since
            const Part right = parts_[left.next];
            if (left.begin == 0 && right.end == text.size()) return {left.rank, right.rank};
            parts_[left.next].next = kNone;
            left.end = right.end;
            left.next = right.next;
            left.rank = join.rank;
            if (left.next != kNone) {
                parts_[left.next].previous = join.left;
                propose(join.left);
            }
            if (left.begin > 0) propose(left.previous);
        }
        return {kNone, kNone};
    }

  private:
    struct Part {
        size_t begin, end;
        uint32_t previous, next, rank;
    };
    struct Join {
        uint32_t rank, left;
        size_t end;
        auto operator<=>(const Join&) const = default;
    };

    uint32_t rank(size_t begin, size_t end) const { return vocabulary_.rank(text_, sums_, begin, end); }

    void propose(uint32_t i) {
        const Part &left = parts_[i], &right = parts_[left.next];
        if (left.rank == kNone || right.rank == kNone) return;
        const uint32_t whole = rank(left.begin, right.end);
        if (whole == kNone) return;
        joins_.push_back({whole, i, right.end});
        std::push_heap(joins_.begin(), joins_.end(), std::greater<>());
    }

    Vocabulary vocabulary_;
    std::string_view text_;
    std::vector<uint64_t> sums_;
    std::vector<Part> parts_;
    std::vector<Join> joins_;  // a heap: the best whole, leftmost first
};

}  // namespace

std::vector<std::pair<uint32_t, uint32_t>> sentencepiece_merges(std::span<const std::string_view> tokens) {
    Cutter cutter(tokens);
    std::vector<std::pair<uint32_t, uint32_t>> merges;
    for (std::string_view token : tokens)
        if (auto parts = cutter.last_join(token); parts.first != kNone) merges.push_back(parts);
    return merges;
}

}  // namespace octavo
