#include "attention.h"

#include <algorithm>
#include <limits>

namespace treadle {
namespace {

constexpr int32_t kQueryTiles = kMaxAttendRows / kQueryTile;
constexpr int32_t kSplitBlocks = 16;
constexpr int32_t kSplitTokens = kSplitBlocks * kKvBlockTokens;
// Rows of partial results that ranges side by side may leave behind.
constexpr int64_t kMaxPartialRows = 32768;

size_t partial_floats(int32_t head_dim, int64_t num_rows) { return static_cast<size_t>(num_rows * (head_dim + 2)); }

}  // namespace

Attention::Attention(const Model& model, const KvPool& kv, const BlockRows& block_rows)
    : model_(model), kv_(kv), block_rows_(block_rows) {
    for (const LayerConfig& layer : model.config().layers) {
        const auto same = [&](const Schedule& schedule) { return schedule.window == layer.window; };
        const auto found = std::find_if(schedules_.begin(), schedules_.end(), same);
        layer_schedule_.push_back(static_cast<size_t>(found - schedules_.begin()));
        if (found == schedules_.end()) schedules_.push_back({layer.window, {}, {}});
    }
}

void Attention::carve(Carver& carver, int max_workers) {
    const int32_t head_dim = model_.config().head_dim;
    const auto workers = static_cast<size_t>(max_workers);
    partials_ = carver.take<float>(partial_floats(head_dim, kMaxPartialRows));
    worker_partials_ = carver.take<float>(workers * 2 * partial_floats(head_dim, kMaxAttendRows));
    worker_queries_ = carver.take<float>(workers * kMaxAttendRows * head_dim);
    worker_tiles_.clear();
    if (kv_.type() == KvType::kF16) return;
    const TilePlan tiles(kMaxAttendRows);
    for (size_t worker = 0; worker < workers; ++worker) {
        Activations rounded;
        rounded.carve(carver, int64_t{kMaxAttendRows} * head_dim);
        for (int64_t t = 0; t < kQueryTiles; ++t) worker_tiles_.push_back(rounded.tile(tiles, t, head_dim));
    }
}

void Attention::reserve(int64_t max_tokens) {
    const ModelConfig& config = model_.config();
    const int64_t rows = max_tokens * config.group_size() / kQueryTile + max_tokens;
    first_token_.reserve(static_cast<size_t>(max_tokens));
    for (Schedule& schedule : schedules_) {
        schedule.pieces.reserve(static_cast<size_t>(rows * config.num_kv_heads));
        schedule.side_by_side.reserve(kMaxPartialRows);
    }
}

void Attention::plan(const StepInput& input, int num_threads) {
    input_ = input;
    first_token_.clear();
    int32_t token = 0;
    for (int32_t s = 0; s < input.num_sequences; ++s) {
        first_token_.push_back(token);
        token += input.query_lens[s];
    }
    for (Schedule& schedule : schedules_) {
        plan_pieces(schedule, num_threads);
        plan_side_by_side(schedule, num_threads);
    }
}

void Attention::plan_pieces(Schedule& schedule, int num_threads) const {
    const ModelConfig& config = model_.config();
    schedule.pieces.clear();
    // Many rows share a pass over K and V, as long as every worker finds pieces enough.
    const int64_t fair_rows = input_.num_tokens * config.num_heads / (4 * num_threads) / kQueryTile * kQueryTile;
    const auto piece_rows = static_cast<int32_t>(std::clamp<int64_t>(fair_rows, kQueryTile, kMaxAttendRows));
    for (int32_t s = 0; s < input_.num_sequences; ++s) {
        const int32_t num_rows = input_.query_lens[s] * config.group_size();
        for (int32_t head = 0; head < config.num_kv_heads; ++head) {
            for (int32_t row = 0; row < num_rows; row += piece_rows) {
                Piece piece{s, head, row, std::min(piece_rows, num_rows - row), 0, 0, 0};
                piece.first_split = first_in_sight(position_of(piece, 0), schedule.window) / kSplitTokens;
                const int32_t last = position_of(piece, piece.num_rows - 1);
                piece.end_split = (end_of_sight(piece, last, schedule.window) - 1) / kSplitTokens + 1;
                schedule.pieces.push_back(piece);
            }
        }
    }
}

// A piece that is more than half of a worker's fair share would leave cores idle: then ranges run side by side.
void Attention::plan_side_by_side(Schedule& schedule, int num_threads) {
    schedule.side_by_side.clear();
    int64_t num_splits = 0, longest = 0, partial_rows = 0;
    for (Piece& piece : schedule.pieces) {
        piece.first_partial_row = static_cast<int32_t>(std::min(partial_rows, kMaxPartialRows));
        partial_rows += int64_t{piece.num_splits()} * piece.num_rows;
        num_splits += piece.num_splits();
        longest = std::max<int64_t>(longest, piece.num_splits());
    }
    if (num_threads == 1 || longest == 1 || partial_rows > kMaxPartialRows) return;
    if (2 * longest * num_threads <= num_splits) return;
    for (size_t p = 0; p < schedule.pieces.size(); ++p) {
        for (int64_t split = schedule.pieces[p].first_split; split < schedule.pieces[p].end_split; ++split) {
            schedule.side_by_side.push_back(static_cast<int64_t>(p) << 32 | split);
        }
    }
}

Work Attention::work(int32_t layer) const {
    const Schedule& schedule = schedule_of(layer);
    Work work;
    for (const Piece& piece : schedule.pieces) {
        const auto row_values = static_cast<uint64_t>(model_.config().head_dim) * 2;  // a key and a value
        const int32_t first = first_in_sight(position_of(piece, 0), schedule.window);
        const int32_t last = position_of(piece, piece.num_rows - 1);
        const auto num_tokens = static_cast<uint64_t>(end_of_sight(piece, last, schedule.window) - first);
        work.bytes += num_tokens * kv_.head_bytes() / kKvBlockTokens;
        work.operations += 2 * num_tokens * row_values * static_cast<uint64_t>(piece.num_rows);
    }
    return work;
}

void Attention::run(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const {
    if (schedule_of(layer).side_by_side.empty()) return run_pieces(pool, worker, layer, queries, out);
    run_side_by_side(pool, worker, layer, queries, out);
}

void Attention::run_pieces(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const {
    const std::vector<Piece>& pieces = schedule_of(layer).pieces;
    const auto num_pieces = static_cast<int64_t>(pieces.size());
    pool.share(worker, num_pieces, 1, [&](int64_t index, int64_t) {
        // From the back, where the rows of a long prompt see most: what remains for the end is short.
        const Piece& piece = pieces[num_pieces - 1 - index];
        const Partial total = partial(piece, worker_partials_, worker * 2 * kMaxAttendRows);
        const Partial next = partial(piece, worker_partials_, (worker * 2 + 1) * kMaxAttendRows);
        load_queries(worker, piece, queries);
        attend_split(worker, piece, layer, piece.first_split, total);
        for (int32_t split = piece.first_split + 1; split < piece.end_split; ++split) {
            attend_split(worker, piece, layer, split, next);
            merge(total, next, piece.num_rows);
        }
        write_rows(piece, layer, total, out);
    });
}

void Attention::run_side_by_side(ThreadPool& pool, int worker, int32_t layer, const float* queries, float* out) const {
    const Schedule& schedule = schedule_of(layer);
    pool.share(worker, static_cast<int64_t>(schedule.side_by_side.size()), 1, [&](int64_t index, int64_t) {
        const Piece& piece = schedule.pieces[schedule.side_by_side[index] >> 32];
        const auto split = static_cast<int32_t>(schedule.side_by_side[index] & 0xffffffff);
        load_queries(worker, piece, queries);
        attend_split(worker, piece, layer, split, split_partial(piece, split));
    });
    pool.share(worker, static_cast<int64_t>(schedule.pieces.size()), 1, [&](int64_t index, int64_t) {
        const Piece& piece = schedule.pieces[index];
        const Partial total = split_partial(piece, piece.first_split);
        for (int32_t split = piece.first_split + 1; split < piece.end_split; ++split) {
            merge(total, split_partial(piece, split), piece.num_rows);
        }
        write_rows(piece, layer, total, out);
    });
}

int32_t Attention::position_of(const Piece& piece, int32_t row) const {
    return input_.start_positions[piece.sequence] + (piece.first_row + row) / model_.config().group_size();
}

int32_t Attention::first_in_sight(int32_t position, int32_t window) const {
    if (window == 0) return 0;
    return std::max(model_.config().causal ? position + 1 - window : position - window / 2, 0);
}

int32_t Attention::end_of_sight(const Piece& piece, int32_t position, int32_t window) const {
    if (model_.config().causal) return position + 1;
    const int32_t length = input_.query_lens[piece.sequence];
    return window == 0 ? length : std::min(position + window / 2 + 1, length);
}

Attention::Partial Attention::partial(const Piece& piece, float* base, int64_t first_row) const {
    float* start = base + partial_floats(model_.config().head_dim, first_row);
    return {start, start + piece.num_rows, start + 2 * piece.num_rows};
}

Attention::Partial Attention::split_partial(const Piece& piece, int32_t split) const {
    return partial(piece, partials_, piece.first_partial_row + (split - piece.first_split) * piece.num_rows);
}

void Attention::load_queries(int worker, const Piece& piece, const float* queries) const {
    const ModelConfig& config = model_.config();
    const int32_t group = config.group_size();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
        const int32_t row = piece.first_row + r;
        const int32_t head = piece.kv_head * group + row % group;
        const float* query = queries +
                             static_cast<int64_t>(first_token_[piece.sequence] + row / group) * config.query_size() +
                             head * config.head_dim;
        if (kv_.type() != KvType::kF16) {
            const ActTile& tile = worker_tiles_[static_cast<size_t>(worker * kQueryTiles + r / kQueryTile)];
            model_.kernels().quantize[kActQ8](query, config.head_dim, r % kQueryTile, &tile);
            continue;
        }
        float* to = worker_queries_ + (worker * kMaxAttendRows + r / kQueryTile * kQueryTile) * config.head_dim +
                    r % kQueryTile;
        for (int32_t d = 0; d < config.head_dim; ++d) to[d * kQueryTile] = query[d];
    }
}

void Attention::attend_split(int worker, const Piece& piece, int32_t layer, int32_t split, const Partial& out) const {
    const int32_t head_dim = model_.config().head_dim;
    std::fill_n(out.max, piece.num_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(out.sum, piece.num_rows, 0.0f);
    std::fill_n(out.acc, piece.num_rows * head_dim, 0.0f);
    const int32_t* table = block_rows_.row(kv_.group_of(layer), piece.sequence);
    const int32_t window = model_.config().layers[layer].window;
    int32_t position[kMaxAttendRows] = {}, end[kMaxAttendRows] = {};
    int32_t first[kMaxAttendRows], limit[kMaxAttendRows];
    for (int32_t r = 0; r < piece.num_rows; ++r) {
        position[r] = position_of(piece, r);
        end[r] = end_of_sight(piece, position[r], window);
    }
    const int32_t last_end = end[piece.num_rows - 1];
    const int32_t begin = std::max(split * kSplitBlocks, first_in_sight(position[0], window) / kKvBlockTokens);
    // Rows after the first one lose sight of the earliest blocks one by one.
    const int32_t last_begin = first_in_sight(position[piece.num_rows - 1], window);
    for (int32_t block = begin; block < (split + 1) * kSplitBlocks; ++block) {
        const int32_t first_position = block * kKvBlockTokens;
        if (first_position >= last_end) break;
        for (int32_t r = 0; r < piece.num_rows; ++r) {
            limit[r] = std::clamp(end[r] - first_position, 0, int32_t{kKvBlockTokens});
        }
        const bool has_edge = first_position < last_begin;
        for (int32_t r = 0; has_edge && r < piece.num_rows; ++r) {
            first[r] = std::max(first_in_sight(position[r], window) - first_position, 0);
            if (first[r] >= limit[r]) first[r] = limit[r] = 0;
        }
        const bool has_next = first_position + kKvBlockTokens < last_end;
        attend_block(worker, piece, layer, table + block, has_next, has_edge ? first : nullptr, limit, out);
    }
}

void Attention::attend_block(int worker, const Piece& piece, int32_t layer, const int32_t* block, bool has_next,
                             const int32_t* first, const int32_t* limit, const Partial& out) const {
    const int32_t head_dim = model_.config().head_dim, head = piece.kv_head;
    if (kv_.type() == KvType::kF16) {
        const AttendArgs args{kv_.keys<uint16_t>(block[0], layer, head),
                              kv_.values<uint16_t>(block[0], layer, head),
                              head_dim,
                              piece.num_rows,
                              worker_queries_ + worker * kMaxAttendRows * head_dim,
                              limit,
                              out.max,
                              out.sum,
                              out.acc,
                              has_next ? kv_.keys<uint16_t>(block[1], layer, head) : nullptr,
                              first,
                              model_.config().attention_cap};
        model_.kernels().attend_block(&args);
        return;
    }
    const AttendQ8Args args{kv_.keys<uint8_t>(block[0], layer, head),
                            kv_.values<uint8_t>(block[0], layer, head),
                            head_dim,
                            piece.num_rows,
                            worker_tiles_.data() + worker * kQueryTiles,
                            limit,
                            out.max,
                            out.sum,
                            out.acc,
                            has_next ? kv_.keys<uint8_t>(block[1], layer, head) : nullptr,
                            first,
                            model_.config().attention_cap};
    model_.kernels().attend_block_q8_0(&args);
}

void Attention::merge(const Partial& into, const Partial& from, int32_t num_rows) const {
    const int32_t head_dim = model_.config().head_dim;
    for (int32_t r = 0; r < num_rows; ++r) {
        if (from.sum[r] == 0.0f) continue;  // the row ends before this range
        if (into.sum[r] == 0.0f) {          // its window begins after all earlier ranges
            into.max[r] = from.max[r];
            into.sum[r] = from.sum[r];
            std::copy_n(from.acc + r * head_dim, head_dim, into.acc + r * head_dim);
            continue;
        }
        const float max = std::max(into.max[r], from.max[r]);
        // One of the two is exp(0) = 1, and the other one's scalar exponential is slow enough to count.
        const float keep = into.max[r] == max ? 1.0f : exp_f32(into.max[r] - max);
        const float add = from.max[r] == max ? 1.0f : exp_f32(from.max[r] - max);
        into.max[r] = max;
        into.sum[r] = into.sum[r] * keep + from.sum[r] * add;
        float* acc = into.acc + r * head_dim;
        const float* more = from.acc + r * head_dim;
        for (int32_t d = 0; d < head_dim; ++d) acc[d] = acc[d] * keep + more[d] * add;
    }
}

void Attention::add_sinks(const Piece& piece, int32_t layer, const Partial& result) const {
    const float* sinks = model_.layers()[static_cast<size_t>(layer)].attention_sinks;
    if (sinks == nullptr) return;
    const int32_t group = model_.config().group_size(), head_dim = model_.config().head_dim;
    for (int32_t r = 0; r < piece.num_rows; ++r) {
        const float sink = sinks[piece.kv_head * group + (piece.first_row + r) % group];
        const float max = std::max(result.max[r], sink);
        const float correction = exp_f32(result.max[r] - max);
        result.sum[r] = result.sum[r] * correction + exp_f32(sink - max);
        for (int32_t d = 0; d < head_dim; ++d) result.acc[r * head_dim + d] *= correction;
    }
}

void Attention::write_rows(const Piece& piece, int32_t layer, const Partial& result, float* out) const {
    add_sinks(piece, layer, result);
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
