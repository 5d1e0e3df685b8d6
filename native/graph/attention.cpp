#include "attention.h"

#include <algorithm>
#include <limits>

namespace treadle {
namespace {

constexpr int32_t kSplitBlocks = 16;
constexpr int32_t kSplitTokens = kSplitBlocks * kKvBlockTokens;
constexpr int64_t kMaxSlots = 4096;

size_t partial_floats(int32_t head_dim) { return static_cast<size_t>(kMaxAttendRows) * (head_dim + 2); }

}  // namespace

void Attention::carve(Carver& carver, int max_workers) {
    const int32_t head_dim = model_.config().head_dim;
    partials_ = carver.take<float>(kMaxSlots * partial_floats(head_dim));
    worker_partials_ = carver.take<float>(static_cast<size_t>(max_workers) * 2 * partial_floats(head_dim));
    worker_queries_ = carver.take<float>(static_cast<size_t>(max_workers) * kMaxAttendRows * head_dim);
}

void Attention::reserve(int64_t max_tokens) {
    const ModelConfig& config = model_.config();
    const int64_t rows = max_tokens * config.group_size() / kMaxAttendRows + max_tokens;
    first_token_.reserve(static_cast<size_t>(max_tokens));
    pieces_.reserve(static_cast<size_t>(rows * config.num_kv_heads));
    side_by_side_.reserve(kMaxSlots);
}

void Attention::plan(const StepInput& input, int num_threads) {
    const ModelConfig& config = model_.config();
    input_ = input;
    first_token_.clear();
    pieces_.clear();
    side_by_side_.clear();
    int32_t token = 0;
    int64_t num_slots = 0;
    for (int32_t s = 0; s < input.num_sequences; ++s) {
        first_token_.push_back(token);
        token += input.query_lens[s];
        const int32_t num_rows = input.query_lens[s] * config.group_size();
        for (int32_t head = 0; head < config.num_kv_heads; ++head) {
            for (int32_t row = 0; row < num_rows; row += kMaxAttendRows) {
                Piece piece{s, head, row, std::min<int32_t>(kMaxAttendRows, num_rows - row), 0, 0};
                piece.num_splits = position_of(piece, piece.num_rows - 1) / kSplitTokens + 1;
                piece.first_slot = static_cast<int32_t>(std::min(num_slots, kMaxSlots));
                num_slots += piece.num_splits;
                pieces_.push_back(piece);
            }
        }
    }
    // With few pieces a long one would leave cores idle: run its ranges side by side.
    const auto num_pieces = static_cast<int64_t>(pieces_.size());
    if (num_threads == 1 || num_pieces >= 4 * num_threads || num_slots == num_pieces || num_slots > kMaxSlots) return;
    for (int64_t p = 0; p < num_pieces; ++p) {
        for (int64_t split = 0; split < pieces_[p].num_splits; ++split) side_by_side_.push_back(p << 32 | split);
    }
}

Work Attention::work() const {
    Work work;
    for (const Piece& piece : pieces_) {
        const auto row_halves = static_cast<uint64_t>(model_.config().head_dim) * 2;  // a key and a value
        const auto num_tokens = static_cast<uint64_t>(position_of(piece, piece.num_rows - 1) + 1);
        work.bytes += num_tokens * row_halves * sizeof(uint16_t);
        work.operations += 2 * num_tokens * row_halves * static_cast<uint64_t>(piece.num_rows);
    }
    return work;
}

void Attention::run(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const {
    const int32_t head_dim = model_.config().head_dim;
    float* transposed = worker_queries_ + static_cast<size_t>(worker) * kMaxAttendRows * head_dim;
    const auto num_pieces = static_cast<int64_t>(pieces_.size());
    if (side_by_side_.empty()) {
        const Partial total = slot(worker_partials_, worker * 2);
        const Partial next = slot(worker_partials_, worker * 2 + 1);
        pool.share(worker, num_pieces, 1, [&](int64_t index, int64_t) {
            const Piece& piece = pieces_[index];
            load_queries(piece, queries, transposed);
            attend_split(piece, layer, 0, transposed, total);
            for (int32_t split = 1; split < piece.num_splits; ++split) {
                attend_split(piece, layer, split, transposed, next);
                merge(total, next, piece.num_rows);
            }
            write_rows(piece, total, out);
        });
        return;
    }
    pool.share(worker, static_cast<int64_t>(side_by_side_.size()), 1, [&](int64_t index, int64_t) {
        const Piece& piece = pieces_[side_by_side_[index] >> 32];
        const auto split = static_cast<int32_t>(side_by_side_[index] & 0xffffffff);
        load_queries(piece, queries, transposed);
        attend_split(piece, layer, split, transposed, slot(partials_, piece.first_slot + split));
    });
    pool.share(worker, num_pieces, 1, [&](int64_t index, int64_t) {
        const Piece& piece = pieces_[index];
        const Partial total = slot(partials_, piece.first_slot);
        for (int32_t split = 1; split < piece.num_splits; ++split) {
            merge(total, slot(partials_, piece.first_slot + split), piece.num_rows);
        }
        write_rows(piece, total, out);
    });
}

int32_t Attention::position_of(const Piece& piece, int32_t row) const {
    return input_.start_positions[piece.sequence] + (piece.first_row + row) / model_.config().group_size();
}

Attention::Partial Attention::slot(float* base, int64_t index) const {
    float* start = base + static_cast<size_t>(index) * partial_floats(model_.config().head_dim);
    return {start, start + kMaxAttendRows, start + 2 * kMaxAttendRows};
}

void Attention::load_queries(const Piece& piece, const float* queries, float* transposed) const {
    const ModelConfig& config = model_.config();
    const int32_t group = config.group_size();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
        const int32_t row = piece.first_row + r;
        const int32_t head = piece.kv_head * group + row % group;
        const float* query = queries +
                             static_cast<int64_t>(first_token_[piece.sequence] + row / group) * config.query_size() +
                             head * config.head_dim;
        for (int32_t d = 0; d < config.head_dim; ++d) transposed[d * kMaxAttendRows + r] = query[d];
    }
}

void Attention::attend_split(const Piece& piece, int32_t layer, int32_t split, const float* transposed,
                             const Partial& out) const {
    const int32_t head_dim = model_.config().head_dim;
    std::fill_n(out.max, piece.num_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(out.sum, piece.num_rows, 0.0f);
    std::fill_n(out.acc, piece.num_rows * head_dim, 0.0f);
    const int32_t* table = input_.block_tables + piece.sequence * input_.table_width;
    const int32_t last_position = position_of(piece, piece.num_rows - 1);
    int32_t limit[kMaxAttendRows];
    AttendArgs args{nullptr, nullptr, head_dim, piece.num_rows, transposed, limit, out.max, out.sum, out.acc};
    for (int32_t block = split * kSplitBlocks; block < (split + 1) * kSplitBlocks; ++block) {
        const int32_t first_position = block * kKvBlockTokens;
        if (first_position > last_position) break;
        for (int32_t r = 0; r < piece.num_rows; ++r) {
            limit[r] = std::clamp(position_of(piece, r) + 1 - first_position, 0, static_cast<int32_t>(kKvBlockTokens));
        }
        args.k_block = kv_.keys(table[block], layer, piece.kv_head);
        args.v_block = kv_.values(table[block], layer, piece.kv_head);
        const bool has_next = first_position + kKvBlockTokens <= last_position;
        args.next_k_block = has_next ? kv_.keys(table[block + 1], layer, piece.kv_head) : nullptr;
        model_.kernels().attend_block(&args);
    }
}

void Attention::merge(const Partial& into, const Partial& from, int32_t num_rows) const {
    const int32_t head_dim = model_.config().head_dim;
    for (int32_t r = 0; r < num_rows; ++r) {
        if (from.sum[r] == 0.0f) continue;  // the row ends before this range
        const float max = std::max(into.max[r], from.max[r]);
        const float keep = exp_f32(into.max[r] - max);
        const float add = exp_f32(from.max[r] - max);
        into.max[r] = max;
        into.sum[r] = into.sum[r] * keep + from.sum[r] * add;
        float* acc = into.acc + r * head_dim;
        const float* more = from.acc + r * head_dim;
        for (int32_t d = 0; d < head_dim; ++d) acc[d] = acc[d] * keep + more[d] * add;
    }
}

void Attention::write_rows(const Piece& piece, const Partial& result, float* out) const {
    const ModelConfig& config = model_.config();
    const int32_t group = config.group_size();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
        const int32_t row = piece.first_row + r;
        float* target = out + static_cast<int64_t>(first_token_[piece.sequence] + row / group) * config.query_size() +
                        (piece.kv_head * group + row % group) * config.head_dim;
        const float inverse = 1.0f / result.sum[r];
        for (int32_t d = 0; d < config.head_dim; ++d) target[d] = result.acc[r * config.head_dim + d] * inverse;
    }
}

}  // namespace treadle
