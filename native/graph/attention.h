// Attention over KV blocks: which pieces of work a step has, and how one worker does a piece.
//
// The query rows of one KV head (group_size heads of each token) go through the cache together, up to kMaxAttendRows at
// a time. The context is always cut into ranges of kSplitBlocks blocks whose partial results are merged in order. So a
// row's bits do not depend on whether ranges ran one after the other on one core or side by side on several. Layers
// with a sliding window have a list of work of their own, without the ranges and blocks that no row of a piece sees.
#pragma once

#include <cstdint>
#include <vector>

#include "activations.h"
#include "block_rows.h"
#include "kv_pool.h"
#include "step_timers.h"
#include "treadle/memory.h"
#include "treadle/model.h"
#include "treadle/runtime.h"
#include "treadle/thread_pool.h"

namespace treadle {

class Attention {
 public:
    Attention(const Model& model, const KvPool& kv, const BlockRows& block_rows);

    void carve(Carver& carver, int max_workers);
    void reserve(int64_t max_tokens);

    // Lists the work of a step; layers of the same window share a list.
    void plan(const StepInput& input, int num_threads);

    // The first position that a token at a position sees in a layer with this window.
    int32_t first_in_sight(int32_t position, int32_t window) const;

    // What the layer reads and computes.
    Work work(int32_t layer) const;

    // SPMD body of one layer: queries [num_tokens][query_size] scaled and rotated, out of the same shape.
    void run(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const;

 private:
    // Running softmax of a piece's rows.
    struct Partial {
        float* max;
        float* sum;
        float* acc;  // [num_rows][head_dim]
    };
    struct Piece {
        int32_t sequence, kv_head;
        int32_t first_row, num_rows;  // rows of the sequence: token * group_size + head in group
        int32_t first_split, end_split;
        int32_t first_partial_row;  // of partials_, when ranges run side by side

        int32_t num_splits() const { return end_split - first_split; }
    };
    // The work of all layers with one window.
    struct Schedule {
        int32_t window;
        std::vector<Piece> pieces;
        // (piece << 32 | split) for each range, empty when pieces keep every core busy
        std::vector<int64_t> side_by_side;
    };

    int32_t position_of(const Piece& piece, int32_t row) const;
    // Behind the last position that it sees.
    int32_t end_of_sight(const Piece& piece, int32_t position, int32_t window) const;
    const Schedule& schedule_of(int32_t layer) const { return schedules_[layer_schedule_[static_cast<size_t>(layer)]]; }
    void load_queries(int worker, const Piece& piece, const float* queries) const;
    void attend_split(int worker, const Piece& piece, int32_t layer, int32_t split, const Partial& out) const;
    void attend_block(int worker, const Piece& piece, int32_t layer, const int32_t* block, bool has_next,
                      const int32_t* first, const int32_t* limit, const Partial& out) const;
    void merge(const Partial& into, const Partial& from, int32_t num_rows) const;
    // A sink takes its share of a row's weights and adds nothing (Xiao et al. 2023).
    void add_sinks(const Piece& piece, int32_t layer, const Partial& result) const;
    void write_rows(const Piece& piece, int32_t layer, const Partial& result, float* out) const;
    Partial partial(const Piece& piece, float* base, int64_t first_row) const;
    Partial split_partial(const Piece& piece, int32_t split) const;
    void plan_pieces(Schedule& schedule, int num_threads) const;
    static void plan_side_by_side(Schedule& schedule, int num_threads);
    void run_pieces(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const;
    void run_side_by_side(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const;

    const Model& model_;
    const KvPool& kv_;
    const BlockRows& block_rows_;
    StepInput input_;
    std::vector<int32_t> first_token_;    // of each sequence in the step
    std::vector<Schedule> schedules_;     // one for each window
    std::vector<size_t> layer_schedule_;  // of each layer
    float* partials_ = nullptr;           // of all ranges side by side, one after the other
    float* worker_partials_ = nullptr;    // two per worker
    float* worker_queries_ = nullptr;     // as AttendArgs::q, per worker
    std::vector<ActTile> worker_tiles_;   // as AttendQ8Args::q, per worker, empty without q8_0 blocks
};

}  // namespace treadle
