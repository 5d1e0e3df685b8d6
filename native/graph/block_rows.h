// Which KV blocks hold the keys and values of a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "treadle/runtime.h"

namespace treadle {

// Of a decoder those that the step's tables say. An encoder keeps nothing between steps: its sequences get block after
// block anew in every step.
class BlockRows {
 public:
    // Room for so many sequences with blocks of so many groups, and so many blocks of an encoder.
    void reserve(int64_t max_sequences, int64_t num_groups, int64_t num_blocks) {
        num_groups_ = num_groups;
        rows_.reserve(static_cast<size_t>(max_sequences * num_groups));
        for (int64_t block = 0; block < num_blocks; ++block) blocks_.push_back(static_cast<int32_t>(block));
    }

    void follow(const StepInput& input) {
        rows_.clear();
        num_sequences_ = input.num_sequences;
        for (int64_t group = 0; group < num_groups_; ++group) {
            const int32_t* tables = input.block_tables + group * input.group_stride;
            for (int64_t s = 0; s < num_sequences_; ++s) rows_.push_back(tables + s * input.table_width);
        }
    }

    void assign(const StepInput& input) {
        rows_.clear();
        const int32_t* next = blocks_.data();
        for (int64_t s = 0; s < input.num_sequences; ++s) {
            rows_.push_back(next);
            next += blocks_for(input.query_lens[s]);
        }
    }

    static int64_t blocks_for(int64_t num_tokens) { return (num_tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

    // The ids of a sequence's blocks in a group.
    const int32_t* row(int32_t group, int32_t sequence) const {
        return rows_[static_cast<size_t>(group * num_sequences_ + sequence)];
    }

 private:
    int64_t num_groups_ = 1, num_sequences_ = 0;
    std::vector<const int32_t*> rows_;  // of each sequence of each group
    std::vector<int32_t> blocks_;       // 0, 1, 2 ...
};

}  // namespace treadle
