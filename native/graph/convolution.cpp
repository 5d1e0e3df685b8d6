// Gated short convolutions, which some layers have in the stead of attention.
//
// All that a convolution needs of earlier steps are the gated values of the last few positions. A KV block holds those
// of the last ones written to it, in a ring: to go on from the end of any block takes nothing else, so blocks of these
// layers are found, kept and given back as those of a sliding window are.
#include <algorithm>

#include "products.h"

namespace treadle {
namespace {

constexpr int64_t kColumns = 64;  // of a piece of work
using Row = float[kColumns];

}  // namespace

void Runtime::Impl::project_convolution(int worker, const LayerWeights& layer) {
    const Matrix& in = layer.convolution.in;
    quantise(worker, input_.num_tokens, in.columns, {&in},
             [&](int64_t token) { return normalised(worker, residual_ + token * in.columns, layer.attention_norm); });
    multiply_a(worker, {&in}, input_.num_tokens);
    multiply(worker, {&in}, input_.num_tokens,
             [&](const Matrix&, int64_t row, int64_t num_rows, int64_t token, int64_t num_tokens, const float* out) {
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     std::copy_n(out + t * kPanelRows, num_rows, gates_and_values_ + (token + t) * in.rows + row);
                 }
             });
    timers_.lap(worker, Operator::kConvolutionIn, [&] { return product_work({&in}, input_.num_tokens); });
}

// One sequence, kColumns columns or what is left of them. Gated values of a position are in rows[position % positions].
void Runtime::Impl::convolve_columns(int32_t index, int32_t sequence, int64_t first_token, int64_t first_column) {
    const int64_t hidden_size = model_->config().hidden_size;
    const int32_t positions = model_->config().layers[index].convolution;
    const int64_t count = std::min(kColumns, hidden_size - first_column);
    const int32_t start = input_.start_positions[sequence], num_tokens = input_.query_lens[sequence];
    const int32_t* blocks = block_rows_.row(kv_.group_of(index), sequence);
    const auto kept = [&](int32_t position) {
        const int32_t block = blocks[position / kKvBlockTokens];
        return kv_.gated_values(block, index, position % kKvBlockTokens % (positions - 1)) + first_column;
    };
    Row kernel[kKvBlockTokens], rows[kKvBlockTokens];
    for (int64_t c = 0; c < count; ++c) {
        for (int32_t p = 0; p < positions; ++p) {
            kernel[p][c] = model_->layers()[index].convolution.kernel[(first_column + c) * positions + p];
        }
    }
    for (int32_t p = start - positions + 1; p < start; ++p) {
        float* row = rows[(p + positions) % positions];
        if (p >= 0) {
            std::copy_n(kept(p), count, row);
        } else {
            std::fill_n(row, count, 0.0f);
        }
    }
    for (int32_t t = 0; t < num_tokens; ++t) {
        const int32_t position = start + t;
        const float* in_gate = gates_and_values_ + (first_token + t) * 3 * hidden_size + first_column;
        const float *out_gate = in_gate + hidden_size, *value = out_gate + hidden_size;
        float* own = rows[position % positions];
        float* out = attended_ + (first_token + t) * hidden_size + first_column;
        for (int64_t c = 0; c < count; ++c) own[c] = in_gate[c] * value[c];
        Row sum = {};
        for (int32_t p = 0; p < positions; ++p) {  // from the one furthest back to the token's own
            const float* row = rows[(position + 1 + p) % positions];
            for (int64_t c = 0; c < count; ++c) sum[c] += kernel[p][c] * row[c];
        }
        for (int64_t c = 0; c < count; ++c) out[c] = out_gate[c] * sum[c];
        // Others of the same block come over it else.
        const bool is_last = num_tokens - t < positions || kKvBlockTokens - position % kKvBlockTokens < positions;
        if (is_last) std::copy_n(own, count, kept(position));
    }
}

void Runtime::Impl::convolve(int worker, int32_t index) {
    const int64_t hidden_size = model_->config().hidden_size;
    const int64_t num_parts = (hidden_size + kColumns - 1) / kColumns;
    pool_.share(worker, input_.num_sequences * num_parts, 1, [&](int64_t item, int64_t) {
        const auto sequence = static_cast<int32_t>(item / num_parts);
        convolve_columns(index, sequence, first_rows_[static_cast<size_t>(sequence)], item % num_parts * kColumns);
    });
    timers_.lap(worker, Operator::kConvolve, [&] {
        const int64_t positions = model_->config().layers[index].convolution;
        return Work{0, static_cast<uint64_t>(2 * (positions + 1) * hidden_size * input_.num_tokens)};
    });
}

}  // namespace treadle
