// Which panels of its weights a share of a linear op reads. pack() lets the same thread write them, so that on a machine of several nodes
// they lie near it. ISA files include it: nothing here is external.
#pragma once

#include "layout.h"

namespace octavo {

// The panels of a weight that begin within these bytes of all weights of an op, laid end to end; this one starts at `start`.
static inline Range panels_within(const PackedWeight& w, int64_t start, Range bytes) {
    const int64_t panels = w.bytes / w.panel_bytes;
    const auto before = [&](int64_t byte) {
        const int64_t count = (byte - start + w.panel_bytes - 1) / w.panel_bytes;
        return count < 0 ? 0 : count < panels ? count : panels;
    };
    return {before(bytes.begin), before(bytes.end)};
}

// The columns that a form of activations takes together.
static constexpr int part_columns(Act act) { return act == Act::s8 ? kActSpan : 32; }

// Columns of gate and up that are computed at a time: whole panels, and whole parts of the form that their product is prepared as.
static constexpr int gated_columns(int panel, Act form) { return panel < part_columns(form) ? part_columns(form) : panel; }

}  // namespace octavo
