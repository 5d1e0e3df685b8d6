// The attention half of a layer: projections, norms of heads, rotation, the write to the KV blocks, and what goes back
// into the residual. Attention itself is attention.cpp.
#include <cmath>

#include "products.h"

namespace treadle {

void Runtime::Impl::rotate(float* head, int64_t token, int32_t rope) const {
    if (rope == kNoRope) return;
    const ModelConfig& config = model_->config();
    const KernelTable& kernels = model_->kernels();
    const int64_t at = token * config.rope_pairs() + config.first_pair(rope);
    const auto half = static_cast<int32_t>(config.ropes[rope].frequencies.size());
    const auto turn = config.rope_pairing == RopePairing::kAdjacent ? kernels.rope_adjacent : kernels.rope_halves;
    turn(head, cos_ + at, sin_ + at, half);
}

// Norms that span all heads of a token; those of single heads are part of finish_head().
void Runtime::Impl::normalise_projections(int worker, const LayerWeights& layer) {
    const ModelConfig& config = model_->config();
    const KernelTable& kernels = model_->kernels();
    pool_.share(worker, input_.num_tokens, 1, [&](int64_t token, int64_t) {
        float* query = query_ + token * config.query_size();
        float* key = key_ + token * config.kv_size();
        kernels.rms_norm(query, layer.query_norm, config.query_size(), config.norm_epsilon, query);
        kernels.rms_norm(key, layer.key_norm, config.kv_size(), config.norm_epsilon, key);
    });
}

float Runtime::Impl::query_scale(int64_t token) const {
    const ModelConfig& config = model_->config();
    if (config.temperature_length == 0) return config.attention_scale;
    const auto periods = static_cast<double>(positions_[token] / config.temperature_length);
    return config.attention_scale * static_cast<float>(1.0 + config.temperature_scale * std::log(1.0 + periods));
}

void Runtime::Impl::finish_head(float* head, const float* norm, int64_t token, int32_t rope) const {
    const ModelConfig& config = model_->config();
    if (config.norms_rotated) rotate(head, token, rope);
    if (norm) model_->kernels().rms_norm(head, norm, config.head_dim, config.norm_epsilon, head);
    if (!config.norms_rotated) rotate(head, token, rope);
}

void Runtime::Impl::finish_heads_and_store(int worker, int32_t index) {
    const ModelConfig& config = model_->config();
    const LayerWeights& layer = model_->layers()[index];
    const int32_t rope = config.layers[index].rope;
    const int32_t group = kv_.group_of(index);
    const float* query_norm = config.norms_projections ? nullptr : layer.query_norm;
    const float* key_norm = config.norms_projections ? nullptr : layer.key_norm;
    const int64_t heads_per_token = config.num_heads + config.num_kv_heads;
    const int64_t chunk = std::max<int64_t>(1, heads_per_token * input_.num_tokens / (8 * pool_.num_threads()));
    pool_.share(worker, heads_per_token * input_.num_tokens, chunk, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t token = item / heads_per_token;
            const auto head = static_cast<int32_t>(item % heads_per_token);
            if (head < config.num_heads) {
                float* query = query_ + token * config.query_size() + head * config.head_dim;
                finish_head(query, query_norm, token, rope);
                const float scale = query_scale(token);
                for (int32_t d = 0; d < config.head_dim; ++d) query[d] *= scale;
                continue;
            }
            const int32_t kv_head = head - config.num_heads;
            const int32_t block = block_rows_.row(group, sequences_[token])[positions_[token] / kKvBlockTokens];
            const int32_t slot = positions_[token] % kKvBlockTokens;
            float* key = key_ + token * config.kv_size() + kv_head * config.head_dim;
            finish_head(key, key_norm, token, rope);
            const float* value = value_ + token * config.kv_size() + kv_head * config.head_dim;
            kv_.store(model_->kernels(), block, index, kv_head, slot, key, value);
        }
    });
}

void Runtime::Impl::project_and_store(int worker, int32_t index) {
    const LayerWeights& layer = model_->layers()[index];
    const ModelConfig& config = model_->config();
    quantise(worker, input_.num_tokens, config.hidden_size, {&layer.query, &layer.key, &layer.value},
             [&](int64_t token) {
                 return normalised(worker, residual_ + token * config.hidden_size, layer.attention_norm);
             });
    multiply_a(worker, {&layer.query, &layer.key, &layer.value}, input_.num_tokens);
    multiply(
        worker, {&layer.query, &layer.key, &layer.value}, input_.num_tokens,
        [&](const Matrix& matrix, int64_t row, int64_t num_rows, int64_t token, int64_t num_tokens, const float* out) {
            const bool is_query = &matrix == &layer.query;
            const bool is_key = &matrix == &layer.key;
            float* rows = is_query ? query_ : is_key ? key_ : value_;
            const float* bias = is_query ? layer.query_bias : is_key ? layer.key_bias : layer.value_bias;
            for (int64_t t = 0; t < num_tokens; ++t) {
                float* target = rows + (token + t) * matrix.rows + row;
                for (int64_t r = 0; r < num_rows; ++r) {
                    target[r] = bias ? out[t * kPanelRows + r] + bias[row + r] : out[t * kPanelRows + r];
                }
            }
        });
    timers_.lap(worker, Operator::kQkv,
                [&] { return product_work({&layer.query, &layer.key, &layer.value}, input_.num_tokens); });
    if (config.norms_projections) normalise_projections(worker, layer);
    finish_heads_and_store(worker, index);
    timers_.lap(worker, Operator::kRotateStore);
}

void Runtime::Impl::attention_output(int worker, const LayerWeights& layer) {
    const int64_t columns = layer.attention_output.columns;
    quantise(worker, num_rows_, columns, {&layer.attention_output},
             [&](int64_t row) { return attended_ + row * columns; });
    multiply_into_residual(worker, layer.attention_output, layer.attention_output_bias, layer.post_attention_norm);
    timers_.lap(worker, Operator::kAttentionOutput, [&] { return product_work({&layer.attention_output}, num_rows_); });
    if (layer.residual_attention_norm.weight) normalise_residual(worker, layer.residual_attention_norm);
}

}  // namespace treadle
