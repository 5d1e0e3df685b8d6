// The forward pass of all families as one SPMD body: every worker runs it, phases end at barriers.
//
// Each phase computes every output element with an order of operations that depends on that element's token alone.
// Hence the promise of the runtime: the same bits whatever the batch, the chunking and the number of workers.
#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "products.h"

namespace treadle {

namespace {

int current_cpu() {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

void add_row(const Matrix& table, int64_t index, float* scratch, float* row) {
    dequantize_panel_row(table.format, table.panel(index / kPanelRows), index % kPanelRows, table.columns, scratch);
    for (int64_t d = 0; d < table.columns; ++d) row[d] += scratch[d];
}

}  // namespace

void Runtime::Impl::rotary_angles(int64_t token) {
    const ModelConfig& config = model_->config();
    int64_t at = token * config.rope_pairs();
    for (const RopeTable& table : config.ropes) {
        for (const double frequency : table.frequencies) {
            const double angle = positions_[token] * frequency;
            cos_[at] = static_cast<float>(std::cos(angle)) * table.magnitude;
            sin_[at] = static_cast<float>(std::sin(angle)) * table.magnitude;
            ++at;
        }
    }
}

// Asked anew in every step: threads that are not pinned move.
void Runtime::Impl::find_copy(int worker) {
    if (model_->has_copies()) copy_offsets_[static_cast<size_t>(worker)] = model_->copy_offset(current_cpu());
}

void Runtime::Impl::embed(int worker) {
    const ModelEnds& ends = model_->ends();
    const Matrix& table = ends.token_embedding;
    float* own = worker_rows_ + worker * table.columns;
    const float scale = model_->config().embedding_scale;
    pool_.share(worker, input_.num_tokens, 1, [&](int64_t token, int64_t) {
        const int32_t id = input_.token_ids[token];
        float* row = residual_ + token * table.columns;
        dequantize_panel_row(table.format, table.panel(id / kPanelRows), id % kPanelRows, table.columns, row);
        if (scale != 1.0f) std::transform(row, row + table.columns, row, [&](float x) { return x * scale; });
        if (ends.positions.rows > 0) add_row(ends.positions, positions_[token], own, row);
        if (ends.token_types.rows > 0) add_row(ends.token_types, 0, own, row);
        if (ends.embedding_norm.weight) normalise(row, ends.embedding_norm, row);
        rotary_angles(token);
    });
}

// After the last attention only the rows whose logits or states are wanted matter: moves them to the front.
void Runtime::Impl::keep_rows(int worker, int64_t attended_columns) {
    const ModelConfig& config = model_->config();
    if (worker == 0) {
        num_rows_ = static_cast<int64_t>(kept_rows_.size());
        adapted_.keep(kept_rows_);
        for (int64_t i = 0; i < num_rows_; ++i) {
            const int64_t from = kept_rows_[static_cast<size_t>(i)];
            std::memmove(residual_ + i * config.hidden_size, residual_ + from * config.hidden_size,
                         static_cast<size_t>(config.hidden_size) * sizeof(float));
            std::memmove(attended_ + i * attended_columns, attended_ + from * attended_columns,
                         static_cast<size_t>(attended_columns) * sizeof(float));
        }
    }
    pool_.barrier(worker);
    timers_.lap(worker, Operator::kKeepRows);
}

// Where a token's row of residual_ is, once only the kept ones are left.
const float* Runtime::Impl::kept(int64_t row) const {
    const auto place = std::lower_bound(kept_rows_.begin(), kept_rows_.end(), row) - kept_rows_.begin();
    return residual_ + place * model_->config().hidden_size;
}

void Runtime::Impl::finish_logits(float* logits, int64_t count) const {
    const ModelConfig& config = model_->config();
    if (config.logit_scale != 1.0f) {
        for (int64_t i = 0; i < count; ++i) logits[i] *= config.logit_scale;
    }
    if (config.logit_cap.cap > 0.0f) model_->kernels().soft_cap(logits, count, config.logit_cap);
}

void Runtime::Impl::logits_and_samples(int worker) {
    const ModelConfig& config = model_->config();
    const Matrix& output = model_->ends().output;
    float* vocab_scratch = worker_vocab_ + static_cast<int64_t>(worker) * config.vocab_size;
    for (int64_t first = 0; first < input_.num_logit_rows; first += max_logit_rows_) {
        const int64_t num_rows = std::min(max_logit_rows_, input_.num_logit_rows - first);
        float* logits = input_.logits ? input_.logits + first * config.vocab_size : logits_;
        quantise(worker, num_rows, config.hidden_size, {&output}, [&](int64_t row) {
            return normalised(worker, kept(input_.logit_rows[first + row]), model_->ends().output_norm);
        });
        multiply(worker, {&output}, num_rows,
                 [&](const Matrix&, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, float* out) {
                     finish_logits(out, num_tokens * kPanelRows);
                     for (int64_t t = 0; t < num_tokens; ++t) {
                         std::memcpy(logits + (token + t) * config.vocab_size + row, out + t * kPanelRows,
                                     static_cast<size_t>(rows) * sizeof(float));
                     }
                 });
        timers_.lap(worker, Operator::kLogits, [&] { return product_work({&output}, num_rows); });
        pool_.share(worker, num_rows, 1, [&](int64_t row, int64_t) {
            results_[first + row] =
                input_.samplers[first + row]->sample(logits + row * config.vocab_size, vocab_scratch);
        });
        timers_.lap(worker, Operator::kSample);
    }
}

void Runtime::Impl::forward(int worker) {
    const int32_t last = model_->config().num_layers - 1;
    const bool is_parallel = model_->config().parallel_halves;
    timers_.lap(worker, Operator::kStart);
    find_copy(worker);
    embed(worker);
    timers_.lap(worker, Operator::kEmbed);
    for (int32_t index = 0; index <= last; ++index) {
        const LayerWeights& layer = model_->layers()[index];
        const bool only_fills_blocks = index == last && kept_rows_.empty();
        if (layer.convolution.kernel == nullptr) {
            project_and_store(worker, index);
            if (only_fills_blocks) return;
            attention_.run(pool_, worker, index, query_, attended_);
            timers_.lap(worker, Operator::kAttention, [&] { return attention_.work(index); });
        } else {
            project_convolution(worker, layer);
            convolve(worker, index);
            if (only_fills_blocks) return;
        }
        if (index == last) keep_rows(worker, layer.attention_output.columns);
        // Attention is done with the residual, so a feed-forward that reads the same goes first.
        if (is_parallel) feed_forward_block(worker, index);
        attention_output(worker, layer);
        if (!is_parallel) feed_forward_block(worker, index);
    }
    if (input_.num_state_sums > 0) add_states(worker);
    logits_and_samples(worker);
}

}  // namespace treadle
