// Which rows of a step belong to which adapter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "treadle/adapter.h"
#include "treadle/runtime.h"

namespace treadle {

class AdaptedRows {
 public:
    static constexpr int32_t kNone = -1;

    void reserve(int64_t max_rows) {
        active_.reserve(static_cast<size_t>(max_rows));
        of_row_.reserve(static_cast<size_t>(max_rows));
    }

    void list(const StepInput& input);
    // Of the rows only these are left, ascending.
    void keep(std::span<const int32_t> rows) {
        for (size_t i = 0; i < rows.size() && !active_.empty(); ++i) of_row_[i] = of_row_[static_cast<size_t>(rows[i])];
    }

    bool empty() const { return active_.empty(); }
    std::span<const Adapter* const> active() const { return active_; }
    bool has(int32_t adapter, int64_t row) const { return of_row_[static_cast<size_t>(row)] == adapter; }
    bool has_any(int32_t adapter, int64_t first_row, int64_t num_rows) const {
        for (int64_t i = 0; i < num_rows; ++i) {
            if (has(adapter, first_row + i)) return true;
        }
        return false;
    }

 private:
    std::vector<const Adapter*> active_;  // each once, in the order of their first rows
    std::vector<int32_t> of_row_;         // index into active_ or kNone; empty without adapters
};

}  // namespace treadle
