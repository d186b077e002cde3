// Which part of the work of a linear op is a thread's. pack() lets the same thread write the panels, so that on a machine of several nodes
// they lie near it. ISA files include it: nothing here is external.
#pragma once

#include <utility>

#include "layout.h"

namespace octavo {

// A place in the work of a linear op: after all units before `unit`, and the first `row` rows of activations of that one.
struct Cut {
    int64_t unit;
    int row;
};

// From so many rows on, threads share a unit, each with some of them. Whole units leave threads waiting for one another where there are
// few: 9 panels on two threads, a tenth of the time. Fewer rows are bound by reading weights, which both would read.
constexpr int kCutRows = 24;

// Where the part `at` of units of size `unit_size` falls; between multiples of six rows, for the sake of full tiles on most levels.
static inline Cut cut_at(int64_t at, int64_t unit_size, int64_t units, int rows) {
    if (at <= 0) return {0, 0};
    if (at >= units * unit_size) return {units, 0};
    return {at / unit_size, rows < kCutRows ? 0 : static_cast<int>(at % unit_size * rows / unit_size / 6 * 6)};
}

// What of a weight lies within these bytes of all weights of an op, laid end to end; this one starts at `start`.
static inline std::pair<Cut, Cut> cuts_of(const PackedWeight& w, int64_t start, Range bytes, int rows) {
    const int64_t panels = w.bytes / w.panel_bytes;
    return {cut_at(bytes.begin - start, w.panel_bytes, panels, rows), cut_at(bytes.end - start, w.panel_bytes, panels, rows)};
}

// What of units that take equal time is a thread's.
static inline std::pair<Cut, Cut> cuts_of(int64_t units, int rows, int thread, int threads) {
    const Range parts = {units * thread, units * (thread + 1)};  // of which a unit has as many as there are threads
    return {cut_at(parts.begin, threads, units, rows), cut_at(parts.end, threads, units, rows)};
}

// Calls use(begin, end, rows) for the units [begin, end) and the rows between two places.
template <class Use>
static inline void between(Cut from, Cut to, int rows, Use use) {
    if (from.unit == to.unit) {
        if (from.row < to.row) use(from.unit, from.unit + 1, Range{from.row, to.row});
        return;
    }
    if (from.row) use(from.unit, from.unit + 1, Range{from.row, rows}), ++from.unit;
    if (from.unit < to.unit) use(from.unit, to.unit, Range{0, rows});
    if (to.row) use(to.unit, to.unit + 1, Range{0, to.row});
}

// The columns that a form of activations takes together.
static constexpr int part_columns(Act act) { return act == Act::s8 ? kActSpan : 32; }

// Columns of gate and up that are computed at a time: whole panels, and whole parts of the form that their product is prepared as.
static constexpr int gated_columns(int panel, Act form) { return panel < part_columns(form) ? part_columns(form) : panel; }

}  // namespace octavo
